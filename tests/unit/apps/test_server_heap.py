"""Where a server's memory lies: big blocks mapped one by one, what stays on huge pages."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Require

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


_GATHER = """
import re
from cellwall.apps.heap import lie_on_huge_pages

kept = [str(number) for number in range(400_000)]
found = lie_on_huge_pages() if {is_gathered} else 0
with open("/proc/self/smaps") as smaps:
    huge = sum(map(int, re.findall(r"AnonHugePages: +(\\d+)", smaps.read())))
print(found, huge // 2048, kept[-1])
"""


@pytest.mark.parametrize("is_gathered", [True, False])
def test_what_is_there_is_gathered_on_huge_pages(require: Require, *, is_gathered: bool) -> None:
    """The control: nobody does that by itself, unless the host is told to."""
    version = tuple(int(word) for word in platform.release().split(".")[:2])
    require("MADV_COLLAPSE", version >= (6, 1), "use Linux 6.1 or newer")
    argv = [sys.executable, "-c", _GATHER.format(is_gathered=is_gathered)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
    found, huge, last = map(int, ran.stdout.split())
    usual = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    assert last == 399_999
    assert found >= 4 if is_gathered else found == 0
    assert huge >= found
    assert is_gathered or huge == 0 or "[always]" in usual
