"""Processes of E2B's door: how much is kept of them, and who reads their terminals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from cellwall.apps.doors.e2b.daemon import process_table
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError
from cellwall.apps.doors.e2b.daemon.process_table import Process, Processes
from cellwall.apps.doors.e2b.daemon.pty import Screen
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Verdict
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.client.terminals import Terminal

WAIT_S = 5.0
_ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "d" * 64)
_OUTCOME = Outcome(Verdict.OK, _ISOLATION, exit_code=0)

# -- the table ---------------------------------------------------------------------------------


def _is_kept(processes: Processes, sandbox_id: str, process: Process) -> bool:
    return processes._by_pid(sandbox_id).get(process.pid) is process


def test_the_oldest_processes_of_a_sandbox_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Process(f"c{pid}", pid, {"cmd": "x" * 400}) for pid in range(5)]
    monkeypatch.setattr(process_table, "_MOST_OF_ONE", 3 * made[0].size)
    processes = Processes()
    for each in made:
        processes.add("s", each)
    assert [_is_kept(processes, "s", each) for each in made] == [False, False, True, True, True]
    large = Process("large", 9, {"cmd": "x", "envs": {"A": "x" * 10_000}})
    processes.add("s", large)
    assert _is_kept(processes, "s", large)
    assert not _is_kept(processes, "s", made[-1])


def test_the_sandbox_without_a_new_process_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = {name: Process("c", 1, {"cmd": "x" * 500}) for name in "abc"}
    monkeypatch.setattr(process_table, "_MOST_OF_ALL", 3 * made["a"].size)
    processes = Processes()
    for name in "ab":
        processes.add(name, made[name])
    processes.add("a", Process("again", 2, {}))
    processes.add("c", made["c"])
    assert [_is_kept(processes, name, each) for name, each in made.items()] == [True, False, True]


def test_one_object_is_kept_for_a_command() -> None:
    processes = Processes()
    first = processes.kept("s", Process("c", 1, {}))
    assert processes.kept("s", Process("c", 1, {})) is first
    assert processes.kept("other", Process("c", 1, {})) is not first
    later = Process("later", 1, {})  # the pid was used again
    assert processes.kept("s", later) is later


# -- terminals ---------------------------------------------------------------------------------


class _Terminal:
    """A terminal that writes what the test says."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_replaced = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.written.get():
            yield data

    async def wait(self) -> SimpleNamespace:
        return SimpleNamespace(outcome=_OUTCOME)

    def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.written.put_nowait(piece)


def _screen(terminal: _Terminal) -> Screen:
    seat = SimpleNamespace(request=SimpleNamespace(state=SimpleNamespace(tasks=Tasks())))
    return Screen(cast("Seat", seat), cast("Terminal", terminal))


async def _read(events: AsyncIterator[Value]) -> bytes:
    """Read a screen to its end."""
    found, has_ended = b"", False
    async for each in events:
        found += each["event"].get("data", {}).get("pty", b"")
        has_ended = "end" in each["event"]
    assert has_ended
    return found


def test_a_client_that_leaves_before_it_reads_keeps_no_other_waiting() -> None:
    async def run() -> None:
        terminal = _Terminal()
        screen = _screen(terminal)
        with screen.reading() as events:
            reading = asyncio.ensure_future(_read(events))
            with screen.reading():
                terminal.write(*[b"x"] * 50, b"")
                done, _ = await asyncio.wait({reading}, timeout=0.1)
                assert not done  # it waits for the client that is there and reads nothing
            assert await asyncio.wait_for(reading, WAIT_S) == b"x" * 50

    asyncio.run(run())


def test_every_client_gets_the_end_also_one_that_comes_after_it() -> None:
    async def run() -> None:
        terminal = _Terminal()
        screen = _screen(terminal)
        with screen.reading() as early, screen.reading() as slow:
            terminal.write(*[b"x"] * 16, b"")  # as many as wait for a client that reads none
            assert await asyncio.wait_for(_read(early), WAIT_S) == b"x" * 16
            with screen.reading() as late:
                assert await asyncio.wait_for(_read(late), WAIT_S) == b""
            assert await asyncio.wait_for(_read(slow), WAIT_S) == b"x" * 16

    asyncio.run(run())


def test_a_client_whose_terminal_another_has_taken_is_told() -> None:
    async def run() -> None:
        terminal = _Terminal()
        screen = _screen(terminal)
        with screen.reading() as events:
            terminal.is_replaced = True
            terminal.write(b"")
            with pytest.raises(ConnectError, match="another client"):
                await asyncio.wait_for(_read(events), WAIT_S)

    asyncio.run(run())
