"""Counting from outside: what a tree of processes holds, however it is shared among them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from cellwall.jail.inspect import posture, usage_sums
from cellwall.runtimes.process import boot as process_boot
from cellwall.runtimes.process.sandbox import _process_use

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
_STRIDES = """
import mmap
kept = mmap.mmap(-1, 16 << 30, flags=mmap.MAP_PRIVATE | 0x4000)  # MAP_NORESERVE
for at in range(0, 16 << 30, 2 << 20):
    kept[at]
"""
_MANY = """
import os, signal
gate, leash = os.pipe()
for _ in range(900):
    if os.fork() == 0:
        os.close(leash)
        os.write(1, b".")
        os.read(gate, 1)
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
_CHILD_OF_A_THREAD = """
import os, sys, threading
def fork():
    if os.fork() == 0:
        kept = b'x' * (40 << 20)
        os.write(1, b".")
        sys.stdin.buffer.read()
        os._exit(0)
    threading.Event().wait()
threading.Thread(target=fork, daemon=True).start()
"""
_WITHOUT_ITS_FIRST_THREAD = """
import ctypes, os, sys, threading
def stay():
    kept = b'x' * (40 << 20)
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()
    os.write(1, b".")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""
_GROW = """
import os, sys
kept = []
os.write(1, b".")
while sys.stdin.buffer.read(1):
    kept.append(b'x' * (20 << 20))
    os.write(1, b".")
os._exit(0)
"""
_BURN_AND_STAY = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 0.2:
        pass
    os.write(1, b".")
    signal.pause()
"""
_SPLITS = """
import ctypes, mmap
libc, pages = ctypes.CDLL(None), 20000
kept = mmap.mmap(-1, pages << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(kept))
for page in range(0, pages, 2):
    libc.mprotect(ctypes.c_void_p(start + (page << 12)), ctypes.c_size_t(4096), 1)
"""
_SPLITS_IN_A_THREAD = (
    _SPLITS
    + """
import os, threading
def stay():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()
    os.write(1, b".")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=stay).start()
libc.pthread_exit(None)
"""
)
_STAY = "import os, sys\nos.write(1, b'.')\nsys.stdin.buffer.read()\n"


@contextmanager
def _talking_tree(source: str, processes: int) -> Iterator[subprocess.Popen[bytes]]:
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
        yield child
    finally:
        child.stdin.close()
        child.stdout.close()
        child.wait()


@contextmanager
def _tree(source: str, processes: int) -> Iterator[int]:
    with _talking_tree(source, processes) as child:
        yield child.pid


@pytest.mark.parametrize("source", [_ANONYMOUS, _SHARED], ids=["anonymous", "shared"])
@pytest.mark.parametrize(("fork", "processes"), [("", 1), (_CHILDREN, 4)], ids=["one", "four"])
def test_memory_is_counted_once_however_many_share_it(
    source: str, fork: str, processes: int
) -> None:
    with _tree("", 1) as pid:
        bare = usage_sums.Meter(pid).read().memory_bytes
    with _tree(source + fork, processes) as pid:
        sums = usage_sums.Meter(pid).read()
    assert sums.processes == processes
    assert _HOLD * MIB <= sums.memory_bytes <= (_HOLD + 8 * processes) * MIB + bare


def test_page_tables_count() -> None:
    """8192 of them, in each a page that the kernel has once for all: the one of zeros."""
    with _tree(_STRIDES, 1) as pid:
        sums = usage_sums.Meter(pid).read()
    assert 32 * MIB <= sums.memory_bytes <= 64 * MIB


def test_who_may_not_be_looked_into_counts_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that can be run and not read makes such processes; root may look into them all."""
    real = posture.read_text

    def closed(path: str) -> str:
        if path.endswith("/smaps_rollup"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(posture, "read_text", closed)
    for source in (_ANONYMOUS, _SHARED):
        with _tree(source + _CHILDREN, 4) as pid:
            assert usage_sums.Meter(pid).read().memory_bytes >= _HOLD * MIB


def test_more_children_than_a_page_names_count() -> None:
    with _tree(_MANY, 901) as pid:
        assert usage_sums.Meter(pid).read().processes == 901


def test_the_work_area_counts_but_not_twice() -> None:
    with _tree(_SHARED, 1) as pid:
        without = usage_sums.Meter(pid).read().memory_bytes
        assert usage_sums.Meter(pid).read(_HOLD * MIB // 2).memory_bytes == without
        assert (
            usage_sums.Meter(pid).read(2 * _HOLD * MIB).memory_bytes >= without + (_HOLD - 1) * MIB
        )


def test_cpu_of_children_that_ended_counts() -> None:
    with _tree(_BURN, 1) as pid:
        assert usage_sums.Meter(pid).read().cpu_s >= 0.15


def test_cpu_of_children_that_nobody_waited_for_counts_as_far_as_it_was_seen() -> None:
    with _tree(_BURN_AND_STAY, 2) as pid:
        meter = usage_sums.Meter(pid)
        seen_s = meter.read().cpu_s
        assert seen_s >= 0.15
        (child,) = posture.children(pid)
        os.kill(child, signal.SIGKILL)
        while meter.read().processes > 1:
            pass
        assert usage_sums.Meter(pid).read().cpu_s < 0.15, "the kernel has forgotten it"
        assert meter.read().cpu_s >= seen_s


def test_what_could_not_be_measured_is_measured_by_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _tree(_ANONYMOUS, 1) as pid:
        meter = usage_sums.Meter(pid)

        def exhausted(_pid: int, _thread: int) -> tuple[int, int]:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(usage_sums, "_proportional_bytes", exhausted)
            assert meter.read().memory_bytes == 0
        assert meter.read().memory_bytes >= _HOLD * MIB


def test_without_a_descriptor_to_look_with_the_last_look_stands() -> None:
    with _tree(_ANONYMOUS, 1) as pid:
        meter = usage_sums.Meter(pid)
        seen = meter.read()
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard_limit))
        try:
            found = meter.read(), usage_sums.Meter(pid).read()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))
        assert found == (seen, usage_sums.Sums(0.0, 0, 0))
        assert meter.read() == seen


def test_a_tree_that_is_gone_holds_nothing() -> None:
    assert usage_sums.Meter(4_194_304).read() == usage_sums.Sums(0.0, 0, 0)


@pytest.mark.parametrize(
    ("source", "processes"),
    [(_CHILD_OF_A_THREAD, 2), (_WITHOUT_ITS_FIRST_THREAD, 1)],
    ids=["child of a thread", "without its first thread"],
)
def test_what_threads_hold_and_make_counts(source: str, processes: int) -> None:
    with _tree(source, processes) as pid:
        assert usage_sums.Meter(pid).read().memory_bytes >= _HOLD * MIB
        below = (pid, *process_boot.descendants(pid))
        assert sum(_process_use(each)[1] for each in below) >= _HOLD * MIB  # of `process`


def test_memory_is_measured_again_only_where_something_was_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []
    measure = usage_sums._proportional_bytes

    def counting(pid: int, thread: int) -> tuple[int, int]:
        measured.append(pid)
        return measure(pid, thread)

    monkeypatch.setattr(usage_sums, "_proportional_bytes", counting)
    with _talking_tree(_GROW, 1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        meter = usage_sums.Meter(child.pid)
        found = [meter.read().memory_bytes]
        for _ in range(3):
            child.stdin.write(b"!")
            child.stdin.flush()
            assert os.read(child.stdout.fileno(), 1) == b"."
            _wait_asleep(child.pid)
            found.append(meter.read().memory_bytes)
            assert meter.idle_looks == 0
            looks = len(measured)
            assert meter.read().memory_bytes == found[-1]
            assert (meter.idle_looks, len(measured)) == (1, looks)
    steps = [after - before for before, after in pairwise(found)]
    assert all(20 * MIB <= step <= 28 * MIB for step in steps)


def _wait_asleep(pid: int) -> None:
    while posture.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] != "S":
        pass


@pytest.mark.parametrize("source", [_SPLITS, _SPLITS_IN_A_THREAD])
def test_mappings_count_as_the_memory_that_they_are(source: str) -> None:
    """Split into 20,000; the control is the same interpreter without them."""
    with _talking_tree("", 1) as quiet, _talking_tree(source, 1) as busy:
        plain = usage_sums.Meter(quiet.pid).read().memory_bytes
        meter = usage_sums.Meter(busy.pid)
        split = meter.read().memory_bytes
    assert 20_000 * 200 < split - plain < 20_000 * 300 + 4 * MIB


def test_mappings_of_a_program_that_nobody_may_read_count_by_its_size() -> None:
    def refuse(path: str) -> int:
        raise PermissionError(13, path)

    process = usage_sums._process(os.getpid())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_sums, "_lines", refuse)
        assert 1000 < usage_sums._mappings(process, 7) <= 65_530
