"""Machine code for the two moments in which a sandbox must not be a copy of a Python process.

`CLONER` has two functions. `clone` makes a child that shares the caller's memory; once released,
the child walks a list of prepared system calls (`syscall_script`) there. `wait` releases it and
stands still until it has left that memory. One step of the list is a fork: the forked process goes
on in the caller's code, as if its own `wait` had returned 1. `INIT` is the program that the child
executes in the end; it reaps and reports how the first fork ended. So no page table is copied for a
process that only waits, and the lockdown touches no page of Python's.

The sources lie beside this file, `cloner.x86_64.S` and `init.x86_64.S`; a test assembles them and
compares. SECURITY: while a child shares the worker's memory it runs what is in the list and nothing
else, and the worker stands in `wait`. Neither holds a byte that came from a sandbox's caller, and
none can arrive: the child reads nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from typing import Any, Callable, NamedTuple

from cellwall.linux.syscalls.libc import LIBC, SyscallError

_MACHINE = os.uname().machine
CLONERS = {
    "x86_64": """
    53 4889fb48 8b7b38be 58000000 b8b30100 000f0548 85c00f84 7d000000 5bc36666 2e0f1f84
    00000000 0066662e 0f1f8400 00000000 66662e0f 1f840000 00000048 89274889 5f084889 6f104c89
    67184c89 6f204c89 77284c89 7f304889 fbc74350 01000000 488d7b50 be010000 00ba0100 0000b8ca
    0000000f 058b5354 85d27412 488d7b54 31f64531 d2b8ca00 00000f05 ebe7488b 5b0831c0 c3837b50
    00751448 8d7b5031 f631d245 31d2b8ca 0000000f 05ebe64c 8b634049 8b042448 83f8ff74 7b498b7c
    2408498b 74241049 8b542418 4d8b5424 204d8b44 24284d8b 4c243048 83f8fe75 12b83800 00000f05
    4885c075 084c8b63 48ebc00f 05498b54 24384883 faff741a 4839d074 2a4c8963 58488943 60bf0100
    0000b8e7 0000000f 05f4483d 01f0ffff 720d4889 c248f7da 493b5424 4075d649 83c448e9 7bffffff
    4889df48 8b27488b 5f08488b 6f104c8b 67184c8b 6f204c8b 77284c8b 7f30b801 000000c3
    """
}
INITS = {
    "x86_64": """
    4881ec00 020000bf 04000000 31f6b89d 0000000f 0531ff48 8d35ca00 000031d2 41ba0800 0000b80e
    0000000f 05bf0300 0000488d 35b70000 00ba0100 0000b801 0000000f 0548c7c7 ffffffff 488d7424
    08ba0100 00404c8d 542410b8 3d000000 0f0585c0 7e3283f8 0275dac7 04244400 0000c744 24040000
    0000c744 240c0000 0000bf03 00000048 89e6ba38 000000b8 01000000 0f05ebad 488d3d49 00000048
    8db42400 01000031 d241ba08 000000b8 80000000 0f0583f8 11758a83 bc240801 0000007f 80bf0300
    0000488d 35200000 00ba0100 0000b801 0000000f 05e963ff ffff660f 1f440000 00000100 00000000
    4c3f
    """
}
IS_KNOWN = _MACHINE in CLONERS
"""Whether there is code for this processor."""
WAIT = 64
"""Offset of `wait` in `CLONER`, in bytes; `clone` is at offset 0."""
INIT_START = 0x400000
INIT_HEADERS = 64 + 56
"""Number of bytes before the code of `INIT`: an ELF header and one program header."""

LISTENER = b"N"
"""Message with the listener as its descriptor, sent before the context is forked and `INIT`
executed."""
WORD = b"L"
"""First message of `INIT`."""
MARK = b"?"
"""Message of `INIT`: a process, which may be any inside, told it that a process is about to end."""
END = struct.Struct("=4s4xIxxxxQQQQQ")
"""Message of `INIT` on how its first child ended, as in wait4(2): `D`, wait status, seconds and
microseconds of user and system time, most memory in KiB."""
END_TAG = b"D\0\0\0"

_PROT_READ_EXEC = 5


class Code(NamedTuple):
    """The two functions of `CLONER`, callable."""

    clone: Callable[[ctypes.c_void_p], int]
    wait: Callable[[ctypes.c_void_p], int]
    kept: Any
    """The memory that holds the code; it must live as long as the functions."""


def cloner() -> Code:
    """Map `CLONER`, executable and no longer writable. Raises SyscallError."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes.fromhex(CLONERS[_MACHINE]))
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    size, rights = ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(_PROT_READ_EXEC)
    if LIBC.mprotect(ctypes.c_void_p(place), size, rights):
        raise SyscallError(ctypes.get_errno(), "map the machine code")
    # PYFUNCTYPE keeps the GIL: a fork that returns from `wait` must find it held.
    function = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)
    return Code(function(place), function(place + WAIT), memory)


def init_program() -> bytes:
    """Return `INIT` as an ELF file: one read-only, executable segment at a fixed place. elf(5)."""
    code = bytes.fromhex(INITS[_MACHINE])
    start, size = INIT_START + INIT_HEADERS, INIT_HEADERS + len(code)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)  # 64 bits, little-endian, version 1
    header = struct.pack("=16sHHIQQQI6H", ident, 2, 62, 1, start, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack(
        "=IIQQQQQQ", 1, _PROT_READ_EXEC, 0, INIT_START, INIT_START, size, size, mmap.PAGESIZE
    )
    return header + segment + code
