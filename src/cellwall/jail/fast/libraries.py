"""What libraries are mapped as, so that forks of a process that loaded many copy less of them.

The loader makes five mappings of a library, and has written to two of them when it is done. A fork
copies the list of all mappings, and of those that were written to each page-table entry and the
tree of who shares them; its end undoes that. Template `data` loads a hundred libraries, which took
an eighth of the processor time of its runs (design/0015). No policy; called by the fork-server,
which has one thread, before its forks. What the kernel refuses costs speed only.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import struct
from typing import Dict, List, Optional

from cellwall.jail.fast.huge_pages import Mapping, mappings
from cellwall.linux.syscalls.libc import LIBC, SyscallError

_READ, _READ_WRITE, _READ_EXECUTE = ctypes.c_int(1), ctypes.c_int(1 | 2), ctypes.c_int(1 | 4)
_PRIVATE_FIXED = ctypes.c_int(0x02 | 0x10)
_EXTENSIONS = ("/site-packages/", "/lib-dynload/")
_OURS = "/_ctypes."
_PAGEMAP = "/proc/self/pagemap"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = struct.Struct("=Q")
_THERE = 1 << 63 | 1 << 62
_FILE = 1 << 61
"""Of an entry in /proc/PID/pagemap: present or swapped out; page of a file."""
_ELF64 = b"\x7fELF\x02"
_ELF_HEADER = struct.Struct("=32xQ14xHH")
"""Of elf(5): where the program headers are in the file, the size of one, their number."""
_SEGMENT = struct.Struct("=I12xQ16xQ")
"""A program header's type, address and size in memory."""
_PT_LOAD = 1
_MOST_BSS = 64 * 1024
"""It is copied as well, and most of a large one nobody ever wrote to."""
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
LIBC.pwrite.restype = ctypes.c_ssize_t


def join_constants() -> int:
    """Make one mapping of a library's code and the constants around it; returns how many it spares.

    The constants become executable with it; nothing becomes writable. mprotect(2) of pages that
    belong to the file still, and follow each other there as they do in memory.
    """
    joined = 0
    for stretch in _stretches():
        constants = [each for each in stretch if each.permissions == "r--p"]
        if len(constants) < len(stretch):
            joined += sum(map(_make_executable, constants))
    return joined


def share_relocated() -> int:
    """Have what the loader wrote be pages of a file that forks share; returns of how many mappings.

    That is what it made read-only afterwards, of all libraries, and the data of extension modules
    and what came with them. Whoever writes to those gets a page of its own, as before. The file has
    no name, is sealed, and nobody has it open. SyscallError if a mapping is lost half way: then
    this process is, too.
    """
    try:
        found = _written()
        if not found:
            return 0
        file = os.memfd_create("relocated", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return 0  # a kernel without pagemap, or one that allows no such file
    collects = gc.isenabled()
    gc.disable()  # no code of theirs may run between the copy and its mapping
    try:
        offset = shared = 0
        for each in found:
            shared += _replace(each, file, offset)
            offset += each.end - each.start
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    finally:
        if collects:
            gc.enable()
        os.close(file)
    return shared


def _stretches() -> List[List[Mapping]]:
    """Of each file what is read or run, as far as it lies in memory as it does in the file."""
    found: List[List[Mapping]] = []
    last = Mapping(0, 0, "", "", 0)
    for each in mappings():
        if not each.path.startswith("/") or each.permissions not in ("r--p", "r-xp"):
            continue
        follows = (last.end, last.path, last.offset + last.end - last.start)
        if (each.start, each.path, each.offset) == follows:
            found[-1].append(each)
        else:
            found.append([each])
        last = each
    return found


def _make_executable(mapping: Mapping) -> bool:
    size = ctypes.c_size_t(mapping.end - mapping.start)
    result: int = LIBC.mprotect(ctypes.c_void_p(mapping.start), size, _READ_EXECUTE)
    return result == 0


def _written() -> List[Mapping]:
    """Mappings of files with pages that are their file's no more, and that nothing writes to now.

    Other writable ones are the interpreter's, libc's, or of what we call them with: they change
    while we look at them.
    """
    headers: Dict[str, int] = {}
    found = []
    with open(_PAGEMAP, "rb", buffering=0) as pagemap:
        for each in mappings():
            if each.path.startswith("/") and not each.offset:
                headers[each.path] = each.start
            is_data = _is_data_of_an_extension(each)
            is_fixed = each.permissions == "r--p" and each.path.startswith("/")
            if (is_data or is_fixed) and _has_own_pages(pagemap.fileno(), each):
                found.append(_with_bss(each, headers.get(each.path)) if is_data else each)
    return found


def _with_bss(data: Mapping, header: Optional[int]) -> Mapping:
    """As far as the library's segment reaches; the kernel has what no file holds apart. elf(5)."""
    if header is None or ctypes.string_at(header, 5) != _ELF64:
        return data
    table, size, count = _ELF_HEADER.unpack_from(ctypes.string_at(header, 64))
    segments = [
        _SEGMENT.unpack_from(ctypes.string_at(header + table + number * size, size))
        for number in range(count)
    ]
    loaded = [(address, length) for kind, address, length in segments if kind == _PT_LOAD]
    bias = header - min(loaded)[0] // _PAGE * _PAGE if loaded else 0
    for address, length in loaded:
        end = -(-(bias + address + length) // _PAGE) * _PAGE
        if bias + address < data.end <= end <= data.end + _MOST_BSS:
            return data._replace(end=end)
    return data


def _is_data_of_an_extension(mapping: Mapping) -> bool:
    is_extension = any(folder in mapping.path for folder in _EXTENSIONS)
    return mapping.permissions == "rw-p" and is_extension and _OURS not in mapping.path


def _has_own_pages(pagemap: int, mapping: Mapping) -> bool:
    first, last = mapping.start // _PAGE, mapping.end // _PAGE
    entries = os.pread(pagemap, (last - first) * _ENTRY.size, first * _ENTRY.size)
    return any(entry & _THERE and not entry & _FILE for (entry,) in _ENTRY.iter_unpack(entries))


def _replace(mapping: Mapping, file: int, offset: int) -> bool:
    """Copy it into the file and map that in its place; it must not change in between."""
    place, size = ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.end - mapping.start)
    protection = _READ_WRITE if mapping.permissions == "rw-p" else _READ
    where, fd = ctypes.c_long(offset), ctypes.c_int(file)
    if LIBC.pwrite(fd, place, size, where) != size.value:
        return False
    if LIBC.mmap(place, size, protection, _PRIVATE_FIXED, fd, where) != mapping.start:
        raise SyscallError(ctypes.get_errno(), f"mmap over {mapping.path}")
    return True
