"""What a run writes to is found out, and copied while nobody waits; each in its own process."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from cellwall.guest.process import libc, prefault
from kit.jail.forked import answer

_PAGE = mmap.PAGESIZE
_PAGES = 64


class _Shared:
    """Pages of memory that are present, and that a fork shares with this process."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _PAGES * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory[:] = b"x" * (_PAGES * _PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self._memory[number * _PAGE] = 0x79

    def found(self, ranges: bytes) -> list[int]:
        """Which of them are in there, one by one."""
        numbers = [
            (each - self.address) // _PAGE
            for start, length in prefault._RANGE.iter_unpack(ranges)
            for each in range(start, start + length, _PAGE)
        ]
        return [number for number in numbers if 0 <= number < _PAGES]

    def content(self) -> set[int]:
        return set(self._memory[::_PAGE])


def _in_fork(run: Callable[[], object]) -> None:
    """Do it in a child that shares every page with us, and wait for its end by `os._exit`."""
    pid = libc.fork()
    if not pid:
        run()
        os._exit(0)
    os.waitpid(pid, 0)


def test_written_pages_are_those_that_a_fork_wrote_to() -> None:
    def found() -> list[list[int]]:
        memory = _Shared()
        reader, writer = os.pipe()
        before = memory.found(prefault.written())

        def child() -> None:
            fresh = memory.found(prefault.written())
            memory.write(3, 4, 40)
            os.write(writer, json.dumps([fresh, memory.found(prefault.written())]).encode())

        _in_fork(child)
        own: list[list[int]] = json.loads(os.read(reader, 65536))
        return [before, *own]

    everything, fresh, own = answer(found)
    assert everything == list(range(_PAGES))  # nobody shares them yet
    assert fresh == []
    assert own == [3, 4, 40]


def test_init_and_contexts_are_told_apart() -> None:
    def learnt() -> list[list[int]]:
        memory = _Shared()

        def run() -> None:
            memory.write(1)
            _in_fork(lambda: memory.write(2, 3))

        def run_alone() -> None:
            memory.write(5)
            os._exit(0)

        prefault.learn(run, run_alone)
        return [memory.found(each) for each in prefault.pages]

    init, context, alone = answer(learnt)
    assert (init, context, alone) == ([1], [2, 3], [5])


def _raise() -> NoReturn:
    raise ValueError("a run that breaks off")


def _end() -> NoReturn:
    os.kill(os.getpid(), 9)
    raise AssertionError


def _tell_half() -> None:
    """The context is killed in the middle of its word, and init goes on."""
    pid = libc.fork()
    if not pid:
        prefault.written = lambda: b"x" * 20
        os._exit(0)
    os.waitpid(pid, 0)
    prefault.written = lambda: b""


def _kill_without_a_word() -> None:
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize("broken", [_raise, _end, _tell_half, lambda: None])
def test_run_that_does_not_work_teaches_nothing(broken: Callable[[], None]) -> None:
    """Not even the half of it: the fork-server goes on without."""

    def learnt() -> list[int]:
        prefault.learn(broken, _kill_without_a_word if broken is _tell_half else broken)
        return [len(each) for each in prefault.pages]

    assert answer(learnt) == [0, 0, 0]


@pytest.mark.parametrize("is_parked", [True, False])
def test_pages_are_copied_unless_a_request_is_there(*, is_parked: bool) -> None:
    """Their content stays; the control is the sandbox that has something to do."""

    def copied() -> list[object]:
        memory = _Shared()
        prefault.pages[prefault.CONTEXT] = prefault._RANGE.pack(
            memory.address + 2 * _PAGE, 3 * _PAGE
        ) + prefault._RANGE.pack(memory.address + 9 * _PAGE, _PAGE)
        result_r, result_w = os.pipe()
        request_r, request_w = os.pipe()
        if not is_parked:
            os.write(request_w, b"request")

        def child() -> None:
            prefault.while_waiting(request_r, prefault.CONTEXT)
            own = memory.found(prefault.written())
            os.write(result_w, json.dumps([own, memory.content() == {0x78}]).encode())

        _in_fork(child)
        result: list[object] = json.loads(os.read(result_r, 65536))
        return result

    own, is_unchanged = answer(copied)
    assert own == ([2, 3, 4, 9] if is_parked else [])
    assert is_unchanged


def test_a_request_ends_the_copying() -> None:
    """It comes while the first of them are being copied; the others stay shared."""

    def copied() -> list[int]:
        memory = _Shared()
        prefault.pages[prefault.INIT] = b"".join(
            prefault._RANGE.pack(memory.address + 2 * number * _PAGE, _PAGE) for number in range(30)
        )
        result_r, result_w = os.pipe()
        request_r, request_w = os.pipe()
        populate = libc.populate

        def child() -> None:
            def ask_and_populate(address: int, length: int) -> bool:
                os.write(request_w, b"request")
                return populate(address, length)

            libc.populate = ask_and_populate
            prefault.while_waiting(request_r, prefault.INIT)
            os.write(result_w, json.dumps(memory.found(prefault.written())).encode())

        _in_fork(child)
        result: list[int] = json.loads(os.read(result_r, 65536))
        return result

    own = answer(copied)
    assert own == list(range(0, 2 * len(own), 2))
    assert 0 < len(own) < 30


def test_pages_that_are_not_mapped_are_passed_over() -> None:
    """A library that was there when the run was watched, and is not here: no error, no signal."""

    def copied() -> list[int]:
        memory = _Shared()
        prefault.pages[prefault.INIT] = prefault._RANGE.pack(_PAGE, _PAGE) + prefault._RANGE.pack(
            memory.address, _PAGE
        )
        silent_r, _silent_w = os.pipe()
        result_r, result_w = os.pipe()

        def child() -> None:
            prefault.while_waiting(silent_r, prefault.INIT)
            os.write(result_w, json.dumps(memory.found(prefault.written())).encode())

        _in_fork(child)
        result: list[int] = json.loads(os.read(result_r, 65536))
        return result

    assert answer(copied) == [0]


def test_watching_leaves_no_process_and_no_descriptor() -> None:
    def left() -> list[object]:
        def state() -> Iterator[object]:
            yield sorted(name for name in os.listdir("/proc/self/fd"))
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listing:
                yield listing.read()

        before = list(state())
        prefault.learn(lambda: _in_fork(lambda: None), lambda: os._exit(0))
        return [before == list(state()), all(prefault.pages), os._exit.__name__]

    assert answer(left) == [True, True, "_exit"]
