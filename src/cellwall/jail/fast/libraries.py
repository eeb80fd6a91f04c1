"""How libraries are mapped, so that forks of a process that loaded many copy less of them.

The loader makes five mappings of a library, and has written to two of them when it is done. A fork
copies the list of all mappings. For the mappings that were written to, it also copies each
page-table entry and the tree of the processes that share them; the fork's end undoes all that.
Template `data` loads a hundred libraries, which took an eighth of the processor time of its runs
(design/0015). No policy; called by the fork-server, which has one thread, before its forks. If the
kernel refuses a call, this costs speed only.
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
"""Flags of an entry in /proc/PID/pagemap: present or swapped out; page of a file."""
_ELF64 = b"\x7fELF\x02"
_ELF_HEADER = struct.Struct("=32xQ14xHH")
"""Fields of the ELF header (elf(5)): offset of the program headers, size of one, their number."""
_SEGMENT = struct.Struct("=I12xQ16xQ")
"""Fields of a program header: type, address, size in memory."""
_PT_LOAD = 1
_MOST_BSS = 64 * 1024
"""Largest .bss in bytes that is moved with its data. It is copied, too, and in a large one most
pages were never written to."""
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
LIBC.pwrite.restype = ctypes.c_ssize_t


def join_constants() -> int:
    """Make one mapping of a library's code and the constants around it; returns how many it spares.

    The constants become executable; nothing becomes writable. mprotect(2) is applied only to pages
    that still belong to the file, and that follow each other in the file as they do in memory.
    """
    joined = 0
    for stretch in _stretches():
        constants = [each for each in stretch if each.permissions == "r--p"]
        if len(constants) < len(stretch):
            joined += sum(map(_make_executable, constants))
    return joined


def share_relocated() -> int:
    """Replace what the loader wrote by pages of a shared file; returns how many mappings.

    These are the parts that the loader made read-only afterwards, of all libraries, and the data of
    extension modules and of the libraries that came with them. A process that writes to such data
    gets a page of its own, as before. The file has no name, is sealed, and no process has it open.
    SyscallError if a mapping is lost half way: then this process cannot go on.
    """
    try:
        found = _written()
        if not found:
            return 0
        file = os.memfd_create("relocated", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return 0  # a kernel without pagemap, or one that allows no such file
    collects = gc.isenabled()
    gc.disable()  # no code of extensions may run between copy and mapping
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
    """Return read-only or executable mappings, grouped where file and memory are contiguous."""
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
    """Return file mappings with pages that are no longer the file's, which nothing writes to.

    The other writable mappings belong to the interpreter, to libc, or to the modules that this code
    calls; they change while it reads them.
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
    """Extend a data mapping to the end of its segment: the kernel maps .bss separately. elf(5)."""
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
    """Copy the mapping into the file and map that in its place; it must not change in between."""
    place, size = ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.end - mapping.start)
    protection = _READ_WRITE if mapping.permissions == "rw-p" else _READ
    where, fd = ctypes.c_long(offset), ctypes.c_int(file)
    if LIBC.pwrite(fd, place, size, where) != size.value:
        return False
    if LIBC.mmap(place, size, protection, _PRIVATE_FIXED, fd, where) != mapping.start:
        raise SyscallError(ctypes.get_errno(), f"mmap over {mapping.path}")
    return True
