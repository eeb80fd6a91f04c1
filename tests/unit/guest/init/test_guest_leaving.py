"""An end that is seen before it can be waited for: the kernel's word, and nobody else's."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from cellwall.guest.init import first_program
from cellwall.guest.process import exit_watch, processes
from cellwall.jail.inspect import host_facts
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import SyscallError
from conftest import Require
from kit.jail import forked

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]


@contextmanager
def _child(work: Callable[[], object]) -> Iterator[int]:
    """A forked process that does `work`; killed and waited for in the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(70)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _wait_dead(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_status_of_one_that_has_left_is_what_wait_says(code: int) -> None:
    with _child(lambda: os._exit(code)) as pid:
        _wait_dead(pid)
        assert exit_watch.status_of(pid) == code << 8


def test_status_of_one_that_was_killed_names_the_signal() -> None:
    with _child(signal.pause) as pid:
        os.kill(pid, signal.SIGKILL)
        _wait_dead(pid)
        status = exit_watch.status_of(pid)
    assert status is not None
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_exit_code_of_one_that_is_not_dumpable_is_shown_to_whom_the_facts_say() -> None:
    """Others may read 0, which is why nobody relies on it there."""

    def leave() -> None:
        _LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        os._exit(9)

    with _child(leave) as pid:
        _wait_dead(pid)
        assert exit_watch.status_of(pid) in (
            [9 << 8] if host_facts.sees_exit_codes() else [9 << 8, 0]
        )


def test_root_of_a_user_namespace_does_not_see_every_exit_code(require: Require) -> None:
    def look() -> bool | None:
        try:
            process.unshare(process.CLONE_NEWUSER)
        except SyscallError:
            return None
        host_facts.sees_exit_codes.cache_clear()
        return host_facts.sees_exit_codes()

    seen = forked.answer(look)
    require("namespaces", seen is not None, "a user may not make a user namespace here")
    assert seen is False


def test_one_that_lives_has_no_status() -> None:
    with _child(signal.pause) as pid:
        assert exit_watch.poll_exit_status(pid) is None


def test_one_that_is_nowhere_has_no_status() -> None:
    with _child(lambda: os._exit(3)) as pid:
        pass
    assert exit_watch.status_of(pid) is None


def test_first_thread_that_leaves_alone_ends_nothing() -> None:
    """Its program goes on in another thread: the flag of the first one is no end."""
    told, tell = os.pipe()

    def leave_alone() -> None:
        def stay() -> None:
            os.write(tell, b"x")
            signal.pause()

        threading.Thread(target=stay, daemon=True).start()
        _LIBC.syscall(_SYS_EXIT, 0)

    with _child(leave_alone) as pid:
        os.read(told, 1)
        _wait_zombie(pid)
        fields = processes.read_stat(pid)
        assert exit_watch._is_exiting(fields), "the probe did not run"
        assert fields[exit_watch._SIZE] == b"0"
        assert exit_watch.status_of(pid) is None
    os.close(told)
    os.close(tell)


def _wait_zombie(pid: int) -> None:
    for _ in range(100_000):
        if processes.read_stat(pid)[0] == b"Z":
            return
        os.sched_yield()
    raise AssertionError("its first thread did not leave")


def test_waiting_stops_when_its_parent_hears_of_it() -> None:
    readable, writable = os.pipe()
    os.write(writable, b"x")
    with _child(signal.pause) as pid:
        assert exit_watch.poll_exit_status(pid, readable, 60.0) is None
    os.close(readable)
    os.close(writable)


def test_announcement_reaches_the_parent_and_nobody_needs_a_descriptor() -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    wakeup = signal.set_wakeup_fd(writable)
    try:

        def announce_and_stay() -> None:
            exit_watch.announce()
            signal.pause()

        with _child(announce_and_stay):
            assert select.select([readable], [], [], 20)[0]
            assert os.read(readable, 1) == bytes([signal.SIGCHLD])
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGCHLD, before)
        os.close(readable)
        os.close(writable)


def test_only_child_is_one_or_none() -> None:
    ready, tell = os.pipe()

    def have_children(count: int) -> None:
        for _ in range(count):
            if os.fork() == 0:
                signal.pause()
        os.write(tell, b"x")
        signal.pause()

    for count in (0, 1, 2):
        with _child(partial(have_children, count)) as pid:
            os.read(ready, 1)
            found = exit_watch.only_child(pid)
            children = _children(pid)
            assert found == (children[0] if count == 1 else None)
            for child in children:
                os.kill(child, signal.SIGKILL)
    os.close(ready)
    os.close(tell)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def test_usage_is_that_of_the_whole_process() -> None:
    def burn() -> None:
        while True:
            pass

    with _child(burn) as pid:
        while exit_watch.Usage(pid).ru_utime == 0.0:
            os.sched_yield()
    assert exit_watch.Usage(pid).ru_utime == 0.0  # waited for: nothing is known of it any more


def _looked_ahead(pid: int, listener: socket.socket) -> first_program.FirstProgram:
    """What init knows of a context after somebody announced its end."""
    program = first_program.FirstProgram(pid, -1, -1, -1)
    program.may_be_foreseen = True
    first_program._look_ahead(program, listener.fileno())
    return program


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # a free abstract name, unix(7)
    listener.listen()
    return listener


def test_announced_end_that_the_kernel_does_not_know_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control: one who believed the announcement would tell an end of a program that goes on."""
    with _listener() as listener, _child(signal.pause) as pid:
        assert _looked_ahead(pid, listener).end is None
        monkeypatch.setattr(exit_watch, "status_of", lambda _: 0)
        end = _looked_ahead(pid, listener).end
        assert end is not None
        assert end[0] == 0


def test_end_is_not_told_before_what_the_program_said_last() -> None:
    """A call that nobody has taken yet is heard first; control: without it the end is told."""
    with _listener() as listener, _child(lambda: os._exit(5)) as pid:
        _wait_dead(pid)
        end = _looked_ahead(pid, listener).end
        assert end is not None
        assert end[0] == 5 << 8
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(listener.getsockname())
            assert _looked_ahead(pid, listener).end is None
