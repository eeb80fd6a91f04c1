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
    48892748 895f0848 896f104c 8967184c 896f204c 8977284c 897f300f ae5f38d9 7f3c4889 fb4c8b63
    40498b04 24498b7c 2408498b 74241049 8b542418 4d8b5424 204d8b44 24284d8b 4c243048 85c07859
    0f05498b 54243848 83faff74 054839d0 7526483d 01f0ffff 731e498b 54244048 85d27402 8902498b
    54244848 85d27402 89024983 c450eba1 4c896360 48894368 4531e44c 8763484d 85e4758d bf710000
    00b8e700 00000f05 f44883f8 ff0f848a 03000048 83f8fe74 7f4883f8 fd0f8424 01000048 83f8fc0f
    84360200 004883f8 fb0f84af 02000048 83f8fa0f 84ad0100 004883f8 f90f8471 02000048 83f8f874
    124883f8 f70f8493 01000048 83f8f674 0aeb8549 89fce91e ffffff31 f631d245 31d24531 c0b83800
    00000f05 4885c00f 8863ffff ff0f8515 03000048 c7434800 000000e9 4affffff 4989f5ba 08000000
    41ba0001 00004531 c04531c9 b82d0000 000f0548 83f8080f 852bffff ff4d8b75 00498b7c 24084c89
    ee4c89f2 41ba0001 00004531 c04531c9 b82d0000 000f054c 39f00f85 00ffffff 4d89ece9 99feffff
    4c89ee4c 89f7b940 00000066 0f6f0666 0f6f4e10 660f6f56 20660f6f 5e30660f 7407660f 744f1066
    0f745720 660f745f 30660fdb c1660fdb d3660fdb c2660fd7 c03dffff 0000750c 4883c640 4883c740
    ffc975b7 41ffe049 89fd4989 d64d3b6c 24100f83 8afeffff 4983feff 740b4c8d 05020000 00eb8974
    094c8d0d 02000000 eb144981 c5001000 004983fe ff74ce4d 03742420 ebc7488b 4350488b 53704885
    c0742d48 89c148c1 e104488d 4c0af048 8b314803 71084c39 ee751549 8b742428 483b7108 760a4881
    41080010 0000eb23 483b4378 0f831efe ffff4889 c148c1e1 044801d1 4c892948 c7410800 10000048
    ff435048 81435800 10000041 ffe14989 fd4889d5 4d89d74d 3b6c2410 0f83e0fd ffff410f b60749ff
    c785c074 4d83f802 72414d8b 74243077 0a4989ee 4881c500 1000004c 8d050500 0000e9c1 feffff74
    294c8d0d 22000000 49833c24 f70f8443 ffffff4c 89f64c89 efb90002 0000f348 a5eb0748 81c50010
    00004981 c5001000 00eb9445 31ed4c89 ee48c1e6 04480373 704889f2 4531f645 31ff4c3b 6b507319
    4981ff00 01000073 104c0372 084883c2 1049ffc5 49ffc7eb e14d85ff 0f8440fd ffff498b 7c24084c
    89fab814 0000000f 054c39f0 0f852efd ffffebaa 488b7370 488b5350 48c1e204 0f8414fd ffff4989
    d5b80100 00000f05 4c39e80f 8507fdff ffe9fcfc ffff4889 f54531ed 4c3b6b50 0f83ecfc ffff4c89
    ee48c1e6 04480373 70488b46 08483d00 00020073 564889f1 4531f645 31ff4c3b 6b507324 4981ff00
    01000073 1b488b41 08483d00 00020073 0f4901c6 4883c110 49ffc549 ffc7ebd6 498b7c24 084c89fa
    4989ea45 31c0b827 0100000f 054c39f0 0f858afc ffff4c01 f5eb8948 8b3e4989 c64889c6 ba030000
    0041ba12 0000004d 8b442408 4989e9b8 09000000 0f05483d 01f0ffff 0f8356fc ffff4c01 f549ffc5
    e94fffff ff4889f8 4889dfd9 6f3c0fae 5738488b 27488b5f 08488b6f 104c8b67 184c8b6f 204c8b77
    284c8b7f 30c3
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
_RESCUE_LIST = STATE + PAGE // 4
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
_pack = _RECORD.pack
_NOTHING = (0,) * 6
RECORD_BYTES = _RECORD.size
_ANY = 2**64 - 1
_MOST_ERRNO = 4095
_FIRST, _RESCUE, _COUNT, _RESULT, _EXTENTS, _MOST = 8, 9, 10, 13, 14, 15
REGISTERS_BYTES = 64
"""Bytes of the state that are the registers of a parked process."""
COUNTS = STATE + 8 * _COUNT
"""Address of two words: the number of extents, and the bytes in them."""
(RESUME, RECEIVE, COMPARE, SEND, LOAD, MEND, TABLE, GO_ON, SCAN, CLONE) = (-n for n in range(1, 11))
NEITHER, OF_NO_INTEREST, AS_IN_BASE, ZERO = range(4)
"""What SCAN and MEND do with a page: nothing; nothing, but the base has it; compare it with the
base's; compare it with zeros."""
DONE, IS_COPY, FAILED = 0, 1, -1
"""Results of `park`: a list was walked; in the process that became a copy; a step failed."""
CLONE_FLAGS = 0x8000 | signal.SIGCHLD
"""CLONE_PARENT: init reaps the child."""
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
    words = [number, *arguments, *_NOTHING[len(arguments) :]]
    words += (_ANY if expected is None else expected, *stores, *_NOTHING[4 + len(stores) :])
    try:
        return _pack(*words)
    except struct.error:  # one is negative
        return _pack(*[word & _ANY for word in words])


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

    def park(self, first: bytes, *, returns: bool = False) -> int:
        """Stand still and walk the list `first`, and what it brings.

        With `returns`, a step that fails ends the list; without it, the process. Returns DONE or
        FAILED; the pid of a child that a list has made; IS_COPY in a process that a list made of
        this one.
        """
        put(LIST, first)
        words = (ctypes.c_uint64 * 16).from_address(STATE)
        words[_FIRST], words[_RESCUE] = LIST, 0
        if returns:
            words[_RESCUE] = put(_RESCUE_LIST, record(RESUME, FAILED))
        return int(self._park(STATE))

    def error(self) -> OSError:
        """Return the error of the step that failed."""
        result = (ctypes.c_int64 * 16).from_address(STATE)[_RESULT]
        number = -result if -_MOST_ERRNO <= result < 0 else errno.EPIPE
        return OSError(number, "copy: a step failed")


def put(place: int, data: bytes) -> int:
    """Write `data` to the scratch; return its address."""
    ctypes.memmove(place, data, len(data))
    return place


def unmap() -> None:
    """Unmap everything in the scratch's range."""
    ctypes.CDLL(None).munmap(ctypes.c_void_p(SCRATCH), ctypes.c_size_t(SCRATCH_END - SCRATCH))
