"""A process that the kernel's freezer cannot stop, for as long as a test wants.

It is within a system call that writes to a page of its own, and the page does not come: a
userfaultfd(2) has it, which nothing serves. It ends by a kill only. Not a test.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PROGRAM = """
import ctypes, fcntl, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
faults = libc.syscall(ctypes.c_long(323), ctypes.c_long(os.O_CLOEXEC))
assert faults >= 0, os.strerror(ctypes.get_errno())
fcntl.ioctl(faults, 0xC018AA3F, struct.pack('=QQQ', 0xAA, 0, 0))  # UFFDIO_API
page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
fcntl.ioctl(faults, 0xC020AA00, struct.pack('=QQQQ', address, mmap.PAGESIZE, 1, 0))  # _REGISTER
with open(sys.argv[1], 'w') as group:
    group.write(str(os.getpid()))
print('in', flush=True)
zeros = os.open('/dev/zero', os.O_RDONLY)
libc.read(zeros, ctypes.c_void_p(address), 8)
"""


@contextlib.contextmanager
def unfreezable(group: str) -> Iterator[subprocess.Popen[str]]:
    """Have such a process in a control group; it ends with the block, if it has not before."""
    words = [sys.executable, "-I", "-S", "-c", _PROGRAM, f"{group}/cgroup.procs"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "in\n"
            yield made
        finally:
            made.kill()


def is_in_call(process: subprocess.Popen[str]) -> bool:
    """Whether it has come to its system call: read(2), on x86_64."""
    return Path(f"/proc/{process.pid}/syscall").read_text(encoding="ascii").startswith("0 ")
