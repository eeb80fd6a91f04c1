"""Where a server's memory lies: big blocks are mapped one by one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_COUNT = """
import ctypes, sys
if {is_apart}:
    from cellwall.apps.heap import keep_big_blocks_apart
    assert keep_big_blocks_apart()

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
         "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Figures
freed = bytearray(8 << 20)
del freed  # glibc would take this as a reason to put all that is smaller on the heap
before = libc.mallinfo2().hblks
kept = [bytes(96 * 1024) for _ in range(40)]
between = libc.mallinfo2().hblks
del kept
print(between - before, libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
@pytest.mark.parametrize("is_apart", [True, False])
def test_big_blocks_are_mapped_apart_and_the_control_shows_the_habit(
    is_apart: bool,
) -> None:
    argv = [sys.executable, "-c", _COUNT.format(is_apart=is_apart)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
    found, left = map(int, ran.stdout.split())
    # What is free on the heap already is used first.
    assert found >= 30 if is_apart else found == 0
    assert left == 0
