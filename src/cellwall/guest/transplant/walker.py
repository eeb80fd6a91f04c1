"""Machine code in which a context stands still to be copied, or to become a copy (design/0041).

`park` stands still and walks lists of records: system calls, and steps over pages. The source is
`walker.x86_64.S` beside this file; a test assembles it and compares. All that it uses lies in the
scratch: a range of addresses that is the same in every process of a fork-server and belongs to no
image. No Python runs meanwhile, so the memory that is read, or written, does not change by itself.

SECURITY: it is no boundary. A context that stands here is confined as any other, and the lists of a
hostile image can do what its code could do anyway.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import struct

_CODE = {
    "x86_64": """
    48892748 895f0848 896f104c 8967184c 896f204c 8977284c 897f300f ae5f38d9 7f3c4889 fb488b7b
    484885ff 741b31f6 31d24531 d24531c0 b8380000 000f0548 85c07405 488b5b08 c34c8b63 40498b04
    24498b7c 2408498b 74241049 8b542418 4d8b5424 204d8b44 24284d8b 4c243048 85c0784d 0f05498b
    54243848 83faff74 054839d0 7526483d 01f0ffff 731e498b 54244048 85d27402 8902498b 54244848
    85d27402 89024983 c450eba1 4c896360 48894368 bf710000 00b8e700 00000f05 f44883f8 ff0f840c
    03000048 83f8fe74 404883f8 fd0f84e5 00000048 83f8fc0f 84b80100 004883f8 fb0f8431 02000048
    83f8fa0f 84690100 004883f8 f90f84f3 01000048 83f8f875 a34989fc e93cffff ff4989f5 ba080000
    0041ba00 01000045 31c04531 c9b82d00 00000f05 4883f808 0f8576ff ffff4d8b 7500498b 7c24084c
    89ee4c89 f241ba00 01000045 31c04531 c9b82d00 00000f05 4c39f00f 854bffff ff4d89ec e9e4feff
    ff4c89ee 4c89f7b9 40000000 660f6f06 660f6f4e 10660f6f 5620660f 6f5e3066 0f740766 0f744f10
    660f7457 20660f74 5f30660f dbc1660f dbd3660f dbc2660f d7c03dff ff000075 0c4883c6 404883c7
    40ffc975 b741ffe0 4989fd49 89d64d3b 6c24100f 83d5feff ff4983fe ff740b4c 8d050200 0000eb89
    7465488b 4350488b 53704885 c0742d48 89c148c1 e104488d 4c0af048 8b314803 71084c39 ee751549
    8b742428 483b7108 760a4881 41080010 0000eb23 483b4378 0f8386fe ffff4889 c148c1e1 044801d1
    4c892948 c7410800 10000048 ff435048 81435800 10000049 81c50010 00004983 feff0f84 6effffff
    4d037424 20e964ff ffff4989 fd4989d6 4d3b6c24 100f8333 feffff4c 8d050500 0000e9ea feffff74
    0e4c89f6 4c89efb9 00020000 f348a549 81c50010 00004d03 742420eb cb4531ed 4c89ee48 c1e60448
    03737048 89f24531 f64531ff 4c3b6b50 73194981 ff000100 0073104c 03720848 83c21049 ffc549ff
    c7ebe14d 85ff0f84 cafdffff 498b7c24 084c89fa b8140000 000f054c 39f00f85 b8fdffff ebaa488b
    7370488b 535048c1 e2040f84 9efdffff 4989d5b8 01000000 0f054c39 e80f8591 fdffffe9 86fdffff
    4889f545 31ed4c3b 6b500f83 76fdffff 4c89ee48 c1e60448 03737048 8b460848 3d000002 00735648
    89f14531 f64531ff 4c3b6b50 73244981 ff000100 00731b48 8b410848 3d000002 00730f49 01c64883
    c11049ff c549ffc7 ebd6498b 7c24084c 89fa4989 ea4531c0 b8270100 000f054c 39f00f85 14fdffff
    4c01f5eb 89488b3e 4989c648 89c6ba03 00000041 ba120000 004d8b44 24084989 e9b80900 00000f05
    483d01f0 ffff0f83 e0fcffff 4c01f549 ffc5e94f ffffff48 89dfd96f 3c0fae57 38488b27 488b5f08
    488b6f10 4c8b6718 4c8b6f20 4c8b7728 4c8b7f30 b8010000 00c3
    """
}
IS_KNOWN = os.uname().machine in _CODE
"""Whether there is code for this processor."""

PAGE = 4096
SCRATCH = 0x1000_0000_0000
"""First address of the scratch. The kernel puts programs, heaps, libraries and stacks above."""
SCRATCH_END = SCRATCH + (1 << 41)
STATE = SCRATCH + PAGE
MAILBOX = STATE + PAGE
RESEED = STATE + PAGE // 2
"""Place of a word: whether a copy renews its generators."""
LIST = SCRATCH + (1 << 20)
"""Place of the list that init sends."""
BLOB = SCRATCH + (12 << 20)
"""Place of an image's own list."""
EXTENTS = SCRATCH + (32 << 20)
MOST_EXTENTS = 1 << 20
ZEROS = SCRATCH + (64 << 20)
"""Place of a page of zeros."""
_SCRATCH_BYTES = (64 << 20) + PAGE
BASE = SCRATCH + (1 << 32)
"""Place where the base of the fork-server is mapped."""
FILES = SCRATCH + (1 << 40)
"""Place where a file is mapped to compare pages with it."""

LONGEST = 4 << 20
"""Most bytes of an extent: 256 of them are written by one call, which takes less than 2 GiB."""
LONGEST_READ = 64 << 10
"""Most bytes of an extent that must be read into place and not mapped, such as the stack's."""
_RECORD = struct.Struct("<10Q")
RECORD_BYTES = _RECORD.size
_ANY = 2**64 - 1
_FIRST, _FLAGS, _COUNT, _EXTENTS, _MOST = 8, 9, 10, 14, 15
REGISTERS_BYTES = 64
"""Bytes of the state that are the registers of a parked process."""
COUNTS = STATE + 8 * _COUNT
"""Address of two words: the number of extents, and the bytes in them."""
(RESUME, RECEIVE, COMPARE, SEND, LOAD, RESTORE, TABLE, GO_ON) = (-n for n in range(1, 9))
CLONE_PARENT = 0x8000
_MAP_FIXED_NOREPLACE = 0x100000
_MAP_NORESERVE = 0x4000
EXIT_FAILED = 113
"""Exit code of a process that could not do a step."""
_NUMBERS = {
    **{"write": 1, "open": 2, "close": 3, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11},
    **{"brk": 12, "rt_sigaction": 13, "pread64": 17, "madvise": 28, "dup2": 33, "recvfrom": 45},
    **{"recvmsg": 47, "exit": 60, "fcntl": 72, "chdir": 80, "umask": 95, "gettid": 186},
}
"""Numbers of system calls on x86_64 (arch/x86/entry/syscalls/syscall_64.tbl)."""


def record(
    step: str | int,
    *arguments: int,
    expected: int | None = None,
    stores: tuple[int, ...] = (),
) -> bytes:
    """Return one record: a system call by its name or a step by its number, and its arguments.

    `expected`: the one result that is no failure; without it, any but an error. `stores`: at most
    two addresses where the result's lower half is put.
    """
    number = step if isinstance(step, int) else _NUMBERS[step]
    words = [word & _ANY for word in (number, *arguments)]
    words += [0] * (7 - len(words)) + [_ANY if expected is None else expected & _ANY, *stores]
    return _RECORD.pack(*words, *[0] * (10 - len(words)))


class Scratch:
    """The scratch of this process, mapped; and its code, which `park` calls."""

    def __init__(self) -> None:
        """Map it. Raises OSError: where its addresses are in use, or memory is short."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._mprotect = libc.mmap, libc.mprotect
        self._mmap.restype = ctypes.c_void_p
        self._map(SCRATCH, _SCRATCH_BYTES)
        code = bytes.fromhex(_CODE[os.uname().machine])
        ctypes.memmove(SCRATCH, code, len(code))
        size, rights = ctypes.c_size_t(PAGE), ctypes.c_int(mmap.PROT_READ | mmap.PROT_EXEC)
        if self._mprotect(ctypes.c_void_p(SCRATCH), size, rights):
            raise OSError(ctypes.get_errno(), "copy: map the machine code")
        words = (ctypes.c_uint64 * 16).from_address(STATE)
        words[_EXTENTS], words[_MOST] = EXTENTS, MOST_EXTENTS
        # PYFUNCTYPE keeps the GIL: a copy that returns from `park` must find it held.
        self._park = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(SCRATCH)

    def _map(self, place: int, size: int) -> None:
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE | _MAP_NORESERVE
        rights = ctypes.c_int(mmap.PROT_READ | mmap.PROT_WRITE)
        found = self._mmap(
            ctypes.c_void_p(place), ctypes.c_size_t(size), rights, kind, -1, ctypes.c_long(0)
        )
        if found != place:
            number = ctypes.get_errno() or errno.EEXIST
            raise OSError(number, f"copy: the addresses from {place:#x} on are in use")

    def park(self, first: bytes, flags: int = 0) -> int:
        """Walk the list `first` in a clone of this process, or in this one if `flags` is 0.

        Returns the clone's pid; 1 in the process that a list made of this one. Raises OSError.
        """
        put(LIST, first)
        words = (ctypes.c_uint64 * 16).from_address(STATE)
        words[_FIRST], words[_FLAGS] = LIST, flags | (signal.SIGCHLD if flags else 0)
        result = int(self._park(STATE))
        if result < 0:
            raise OSError(-result, "copy: clone the context")
        return result


def put(place: int, data: bytes) -> int:
    """Write `data` to the scratch; return its address."""
    ctypes.memmove(place, data, len(data))
    return place


def unmap() -> None:
    """Unmap everything in the scratch's range."""
    ctypes.CDLL(None).munmap(ctypes.c_void_p(SCRATCH), ctypes.c_size_t(SCRATCH_END - SCRATCH))
