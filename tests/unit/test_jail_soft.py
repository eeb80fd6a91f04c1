"""Counting from outside: what a tree of processes holds, however it is shared among them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cellwall.jail import soft

MIB = 1 << 20
_HOLD = 40
_ANONYMOUS = f"kept = b'x' * ({_HOLD} << 20)\n"
_SHARED = f"import mmap\nkept = mmap.mmap(-1, {_HOLD} << 20)\nkept.write(b'x' * ({_HOLD} << 20))\n"
_CHILDREN = """
import os, sys
for _ in range(3):
    if os.fork() == 0:
        os.write(1, b".")
        sys.stdin.buffer.read()
        os._exit(0)
"""
_BURN = """
import os, time
pid = os.fork()
if pid == 0:
    while time.process_time() < 0.2:
        pass
    os._exit(0)
os.waitpid(pid, 0)
"""
_STAY = "import os, sys\nos.write(1, b'.')\nsys.stdin.buffer.read()\n"


@contextmanager
def _tree(source: str, processes: int) -> Iterator[int]:
    """A tree that said so once each of its processes stands."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", source + _STAY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        for _ in range(processes):
            assert os.read(child.stdout.fileno(), 1) == b"."
        yield child.pid
    finally:
        child.stdin.close()
        child.stdout.close()
        child.wait()


@pytest.mark.parametrize("source", [_ANONYMOUS, _SHARED], ids=["anonymous", "shared"])
@pytest.mark.parametrize(("fork", "processes"), [("", 1), (_CHILDREN, 4)], ids=["one", "four"])
def test_memory_is_counted_once_however_many_share_it(
    source: str, fork: str, processes: int
) -> None:
    with _tree("", 1) as pid:
        bare = soft.read(pid).memory_bytes
    with _tree(source + fork, processes) as pid:
        sums = soft.read(pid)
    assert sums.processes == processes
    assert _HOLD * MIB <= sums.memory_bytes <= (_HOLD + 8 * processes) * MIB + bare


def test_the_work_area_counts_but_not_twice() -> None:
    with _tree(_SHARED, 1) as pid:
        without = soft.read(pid).memory_bytes
        assert soft.read(pid, _HOLD * MIB // 2).memory_bytes == without
        assert soft.read(pid, 2 * _HOLD * MIB).memory_bytes >= without + (_HOLD - 1) * MIB


def test_cpu_of_children_that_ended_counts() -> None:
    with _tree(_BURN, 1) as pid:
        assert soft.read(pid).cpu_s >= 0.15


def test_a_tree_that_is_gone_holds_nothing() -> None:
    assert soft.read(4_194_304) == soft.Sums(0.0, 0, 0)
