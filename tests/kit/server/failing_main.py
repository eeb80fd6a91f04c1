"""The real server with fail points: run as a program by the tests of faults, never imported.

Not part of any release: it wraps named methods of the released code from outside. What is asked
for comes from the environment:

`CELLWALL_TEST_KILL`   `before:Accept`, `after:Ended`…: the process kills itself around the first
                       write to the store that holds such a change; `at:collect` and `at:code`
                       when the engine collects artifacts and when it hands code over;
                       `before:take_on` and `after:take_on` when it goes on with the second
                       command of an earlier server, and when it has with the first.
`CELLWALL_TEST_FULL`   `Accept:/path`: while that file exists, such writes find a full disk.
`CELLWALL_TEST_LEDGER` a file that gets one line for each program that code is handed over for,
                       before the first byte of it goes into a sandbox, or before it is let go
                       where it was held (that nothing of it runs by then, `test_faults_handover`
                       shows): `NUMBER of the program`.
`CELLWALL_TEST_CLOCK`  a file with the seconds by which the wall clock is off, if it exists.
`CELLWALL_TEST_STARTS` a file that gets the id of each execution when its start is durable.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cellwall.apps.cli.main import main
from cellwall.engine.attempts.attempt import Attempt
from cellwall.engine.parts.commands import Command, Commands
from cellwall.engine.programs import oneshot, programs
from cellwall.store.records.errors import StoreFull
from cellwall.store.store import Store

_NONCE = re.compile(rb"nonce = '(\w+)'")
"""Marks programs of tests; others (what warms the pool) are left alone."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _is_there(path: str) -> bool:
    return Path(path).exists()


def _append(path: str, line: str) -> None:
    """Append in one system call: lines of a process that is killed are whole or absent."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def _wrap_store(kill: str, full: str, starts: str) -> None:
    real = Store.write
    when, _, what = kill.partition(":")
    full_kind, _, full_flag = full.partition(":")

    async def write(self: Store, *changes: Any) -> None:
        kinds = [type(change).__name__ for change in changes]
        if what in kinds and when == "before":
            _kill()
        if full_kind in kinds and _is_there(full_flag):
            raise StoreFull("write: the disk is full, says the test", retry_after_s=1)
        await real(self, *changes)
        if starts:
            for change in changes:
                if type(change).__name__ == "Started":
                    _append(starts, change.id)
        if what in kinds and when == "after":
            _kill()

    Store.write = write  # type: ignore[method-assign]


def _wrap_take(kill: str, full: str) -> None:
    when, _, what = kill.partition(":")
    full_kind, _, full_flag = full.partition(":")
    real_take = Store.take

    def take(self: Store, *changes: Any) -> bool:
        kinds = [type(change).__name__ for change in changes]
        if what in kinds and when == "before":
            _kill()
        if full_kind in kinds and _is_there(full_flag):
            return False  # and `write`, which is asked next, says why
        is_taken = real_take(self, *changes)
        if is_taken and what in kinds and when == "after":
            _kill()
        return is_taken

    Store.take = take  # type: ignore[method-assign]  # a fail point, from outside


def _wrap_engine(kill: str, ledger: str) -> None:
    real_write, real_collect = oneshot._write_files, programs.Programs._collect
    real_go = Attempt.go

    def note(body: bytes) -> None:
        found = _NONCE.search(body)
        if ledger and found is not None:
            _append(ledger, found[1].decode())
        if kill == "at:code" and found is not None:
            _kill()

    async def write_files(live: Any, stage: Any) -> None:
        note(stage.work.body)
        await real_write(live, stage)

    def go(self: Attempt) -> None:
        note(self.work.body)
        real_go(self)

    async def collect(self: programs.Programs, live: Any, work: Any) -> Any:
        found = await real_collect(self, live, work)
        if kill == "at:collect" and _NONCE.search(work.source):
            _kill()
        return found

    oneshot._write_files = write_files
    Attempt.go = go  # type: ignore[method-assign]  # a fail point, from outside
    programs.Programs._collect = collect  # type: ignore[method-assign]


def _wrap_take_on(kill: str) -> None:
    real, taken = Commands.take_on, 0

    async def take_on(self: Commands, *arguments: Any) -> Command:
        nonlocal taken
        if kill == "before:take_on" and taken:
            _kill()
        made = await real(self, *arguments)
        taken += 1
        if kill == "after:take_on":
            _kill()
        return made

    Commands.take_on = take_on  # type: ignore[method-assign, assignment]  # a fail point


def _wrap_clock(offset: str) -> None:
    real = time.time

    def wall() -> float:
        off = Path(offset)
        return real() + (float(off.read_text(encoding="ascii")) if off.exists() else 0.0)

    time.time = wall


def _patched(run: Callable[[], Awaitable[None] | None]) -> None:
    kill = os.environ.get("CELLWALL_TEST_KILL", "")
    _wrap_clock(os.environ["CELLWALL_TEST_CLOCK"])
    _wrap_store(
        kill,
        os.environ.get("CELLWALL_TEST_FULL", ""),
        os.environ.get("CELLWALL_TEST_STARTS", ""),
    )
    _wrap_take(kill, os.environ.get("CELLWALL_TEST_FULL", ""))
    _wrap_engine(kill, os.environ.get("CELLWALL_TEST_LEDGER", ""))
    _wrap_take_on(kill)
    run()


if __name__ == "__main__":
    _patched(main)
