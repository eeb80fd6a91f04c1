"""What a context says right before its end is heard before it is waited for.

Where callers are known by their pid alone (gVisor), it has no name afterwards. The moment is hit on
purpose: the context calls and ends when init has begun to look, woken by somebody else's end.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.guest.init import first_program
from cellwall.guest.init.main import Init


class _Family:
    """A listener, a context that calls it and ends when told to, and an orphan that has ended."""

    def __init__(self, address: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen()
        self.wakeup_r, self.wakeup_w = os.pipe()
        os.write(self.wakeup_w, b"!")
        told, self._tell = os.pipe()
        self.context = os.fork()
        if self.context == 0:
            os.read(told, 1)
            socket.socket(socket.AF_UNIX).connect(address)
            os._exit(3)
        os.close(told)
        self.orphan = os.fork()
        if self.orphan == 0:
            os._exit(0)
        os.waitid(os.P_PID, self.orphan, os.WEXITED | os.WNOWAIT)

    def end_context(self) -> None:
        """Return when it has called and ended; once."""
        if self._tell >= 0:
            os.write(self._tell, b"!")
            os.close(self._tell)
            self._tell = -1
            os.waitid(os.P_PID, self.context, os.WEXITED | os.WNOWAIT)

    def has_called(self) -> bool:
        return bool(select.select([self.listener], [], [], 0)[0])

    def close(self) -> None:
        self.end_context()
        for pid in (self.context, self.orphan):  # the worker may have other children
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self.wakeup_r)
        os.close(self.wakeup_w)
        self.listener.close()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[_Family]:
    made = _Family(str(tmp_path / "init"))
    yield made
    made.close()


def test_the_short_way_hands_over_a_context_that_called_at_its_end(
    family: _Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = first_program.FirstProgram(family.context, -1, -1, -1)
    really_read = os.read

    def read(fd: int, size: int) -> bytes:
        family.end_context()
        return really_read(fd, size)

    monkeypatch.setattr(os, "read", read)
    assert not first_program._hear_the_end(program, family.wakeup_r, family.listener.fileno())
    assert program.end is None
    assert os.waitpid(family.context, 0)[1] == 3 << 8  # it is still there to be waited for


def test_control_the_short_way_takes_in_one_that_said_nothing(family: _Family) -> None:
    program = first_program.FirstProgram(family.context, -1, -1, -1)
    family.end_context()
    family.listener.accept()[0].close()
    assert first_program._hear_the_end(program, family.wakeup_r, family.listener.fileno())
    assert program.end is not None
    assert program.end[0] == 3 << 8


def test_init_hears_each_that_ends_before_it_waits_for_it(family: _Family) -> None:
    """While it hears for the orphan's sake the context calls and ends: it is heard once more."""
    said: list[str] = []

    def hear() -> None:
        said.append("called" if family.has_called() else "silent")
        family.end_context()

    def on_exit(pid: int, _end: Any) -> bool:
        said.append("context" if pid == family.context else "orphan")
        return True

    table = SimpleNamespace(on_exit=on_exit, hear_the_dying=hear)
    init = SimpleNamespace(
        _wakeup_r=family.wakeup_r,
        _contexts=table,
        _commands=table,
        _workers=table,
        _families=SimpleNamespace(look=lambda: None, note_end=lambda *_: None),
    )
    Init._on_child(cast("Any", init), 0)
    assert said == ["silent", "orphan", "called", "context"]
