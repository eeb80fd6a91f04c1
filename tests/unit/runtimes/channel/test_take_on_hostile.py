"""What the host makes of an init that lies when commands are taken on: real sockets, no guest."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.engine.parts.commands import Command, Commands
from cellwall.engine.parts.kept_commands import KeptCommand
from cellwall.model.errors import CellwallError
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes.base import KernelReadings
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.channel.streams import WINDOW_BYTES
from cellwall.runtimes.channel.take_over import Found, take_over
from cellwall.surface.shared.tasks import Tasks
from kit.guest.channel_pair import frame

NUMBER, OTHER = 7, 8
REPORT = {
    "ev": "reply", "contexts": [], "executions": [], "commands": [NUMBER, OTHER],
    "sent_bytes": 0, "unsent_bytes": 0, "can_again": True,
}  # fmt: skip
DONE = {
    "ev": "done", "exit_code": 4, "signal": None, "alive": False, "raised": False, "remains": 0,
    "cut": {"stdout": 0, "stderr": 0, "display": 0, "stdin": 0}, "rusage": {},
}  # fmt: skip
_READINGS = KernelReadings()


def kept(*, has_terminal: bool) -> KeptCommand:
    return KeptCommand(NUMBER, has_terminal, 600, 600, 1 << 20, 0.0, 600, time.time(), {})


@dataclass
class Guest:
    """The hostile end of a standby line, and the channel that it has become."""

    theirs: socket.socket
    channel: GuestChannel
    found: Found
    violations: list[str]
    kills: list[str] = field(default_factory=list)

    def say(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        self.theirs.sendall(frame(header, body))

    async def answer(self, *answers: Mapping[str, Any]) -> None:
        """Read requests, and answer each in turn."""
        data = b""
        for each in answers:
            while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:4], "big"):
                data += await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16)
            size = 8 + int.from_bytes(data[:4], "big")
            request, data = json.loads(data[8:size]), data[size:]
            self.say({"ev": "reply", **each, "id": request["id"]})

    def commands(self) -> Commands:
        live = SimpleNamespace(
            channel=self.channel,
            running=set(),
            claimed_kills=0,
            unknown_kills=0,
            begun=0,
            is_alive=True,
            readings_before=lambda: _READINGS,
            knock=lambda: None,
            touch=lambda: None,
            check_alive=lambda: None,
            clocks=set(),
            ending=set(),
            pausing=None,
            paused_s=0.0,
            readings=lambda: _READINGS,
            read_cpu_s=lambda: 0.0,
            isolation=Isolation("toy", IsolationLevel.PROCESS, "", {}),
            spec=SimpleNamespace(limits=Limits()),
            kill=self.kills.append,
        )
        return Commands(cast("Any", live), Tasks())

    async def taken_on(
        self, said: Mapping[str, object] | None = None, *, has_terminal: bool
    ) -> Command:
        reply = {"pid": 3, "has_terminal": has_terminal, **(said or {})}
        answers = asyncio.ensure_future(self.answer({"mine_us": 0, "others_us": 0}, reply))
        try:
            return await self.commands().take_on(kept(has_terminal=has_terminal))
        finally:
            await answers


async def taken_over(report: Mapping[str, Any] = REPORT, *earlier: Mapping[str, Any]) -> Guest:
    """Take over what says `earlier` first and then reports."""
    ours, theirs = socket.socketpair()
    following, other = socket.socketpair()
    theirs.setblocking(False)
    violations: list[str] = []
    taking = asyncio.ensure_future(take_over(ours, following, violations.append, 5))
    try:
        data = await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        asked = json.loads(data[8:])
        for each in earlier:
            theirs.sendall(frame(each))
        theirs.sendall(frame({**report, "id": asked["id"]}))
        channel, found = await taking
    except BaseException:
        taking.cancel()
        theirs.close()
        raise
    finally:
        other.close()
    return Guest(theirs, channel, found, violations)


def play(body: Callable[[Guest], Any]) -> None:
    async def main() -> None:
        guest = await taken_over()
        try:
            await body(guest)
        finally:
            guest.channel.close()
            guest.theirs.close()
            await asyncio.sleep(0)

    asyncio.run(main())


async def ended(guest: Guest) -> None:
    """Wait for the end of the channel."""
    over = asyncio.Event()
    guest.channel.on_end(over.set)
    await asyncio.wait_for(over.wait(), 20)


def test_end_of_an_earlier_servers_connection_is_no_violation() -> None:
    """Init ends the connections to its ports when it is taken over, and says so first."""

    async def main() -> None:
        ends = [{"ev": "closed", "id": number, "reset": True} for number in (3, 57, 1 << 33)]
        guest = await taken_over(REPORT, *ends)
        guest.say(ends[1])
        answers = asyncio.ensure_future(guest.answer({}))
        await guest.channel.request("ping")
        await answers
        assert guest.violations == []
        guest.channel.close()
        guest.theirs.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_later_server_uses_no_id_of_an_earlier_one() -> None:
    """So a late frame of an earlier request reaches no request of this one."""

    async def main() -> None:
        first = await taken_over()
        for _ in range(3):
            first.channel.tell("nothing")
        began = time.monotonic_ns() // 1_000_000
        while time.monotonic_ns() // 1_000_000 <= began + 1:
            pass  # a later server begins at least a millisecond later
        second = await taken_over()
        assert second.channel.last_id > first.channel.last_id
        for each in (first, second):
            each.channel.close()
            each.theirs.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_work_of_an_id_that_no_earlier_server_used_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ChannelLost, match="request id that is none"):
            await taken_over({**REPORT, "commands": [1 << 60]})

    asyncio.run(main())


@pytest.mark.parametrize("has_terminal", [False, True])
def test_honest_one_goes_on(*, has_terminal: bool) -> None:
    """The control of all below."""

    async def body(guest: Guest) -> None:
        command = await guest.taken_on(has_terminal=has_terminal)
        guest.say({"ev": "stdout", "id": NUMBER}, b"x" * 1000)
        guest.say({**DONE, "id": NUMBER})
        result = await asyncio.wait_for(command.wait(), 20)
        assert (result.outcome.exit_code, command.pid) == (4, 3)
        assert guest.violations == guest.kills == []

    play(body)


LIES: dict[str, tuple[bool, list[tuple[dict[str, Any], bytes]]]] = {
    "more output than was granted": (
        True,
        [({"ev": "stdout", "id": NUMBER}, b"x" * (1 << 20))] * (WINDOW_BYTES // (1 << 20) + 1),
    ),
    "a number of no request": (False, [({"ev": "stdout", "id": 1 << 50}, b"x")]),
    "a grant where none is taken": (False, [({"ev": "credit", "id": NUMBER, "bytes": 9}, b"")]),
    "a display of a terminal": (
        True,
        [({"ev": "display", "id": NUMBER, "kind": "display"}, b"{}")],
    ),
    "a reply of what was not taken on": (False, [({"ev": "reply", "id": OTHER}, b"")]),
    "a call of a tool": (False, [({"ev": "call", "id": NUMBER, "call": 1, "tool": "t"}, b"{}")]),
}


@pytest.mark.parametrize("case", LIES)
def test_lie_ends_the_sandbox(case: str) -> None:
    has_terminal, frames = LIES[case]

    async def body(guest: Guest) -> None:
        command = await guest.taken_on(has_terminal=has_terminal)
        loop = asyncio.get_running_loop()
        for header, content in frames:
            await loop.sock_sendall(guest.theirs, frame(header, content))
        await ended(guest)
        assert len(guest.violations) == 1
        outcome = (await asyncio.wait_for(command.wait(), 20)).outcome
        assert outcome.verdict.value == "sandbox_error"

    play(body)


@pytest.mark.parametrize(
    "said", [{"pid": "3"}, {"pid": -1}, {"pid": True}, {"has_terminal": True}, {"pid": None}]
)
def test_reply_that_is_none_ends_the_sandbox(said: dict[str, object]) -> None:
    async def body(guest: Guest) -> None:
        with pytest.raises(CellwallError, match="take on"):
            await guest.taken_on(said, has_terminal=False)
        assert len(guest.kills) == 1

    play(body)


def test_what_was_not_taken_on_reaches_no_caller() -> None:
    async def body(guest: Guest) -> None:
        command = await guest.taken_on(has_terminal=False)
        guest.say({"ev": "stdout", "id": OTHER}, b"other")
        guest.say({**DONE, "id": OTHER})
        guest.say({**DONE, "id": NUMBER})
        result = await asyncio.wait_for(command.wait(), 20)
        assert (result.stdout, guest.violations) == ("", [])

    play(body)


@pytest.mark.parametrize(
    "report",
    [
        {"commands": None},
        {"commands": [0]},
        {"commands": [1 << 60]},
        {"commands": ["7"]},
        {"commands": list(range(1, 200))},
        {"unsent_bytes": "1"},
        {"can_again": 1},
        {"contexts": [1]},
    ],
)
def test_report_that_is_none_ends_the_sandbox(report: dict[str, object]) -> None:
    async def body() -> None:
        with pytest.raises(ChannelLost, match="violation"):
            await taken_over({**REPORT, **report})

    asyncio.run(body())


def test_count_of_lost_bytes_is_bounded() -> None:
    async def body() -> None:
        guest = await taken_over({**REPORT, "unsent_bytes": 10**30})
        assert guest.found.lost_bytes == 1 << 40
        guest.channel.close()
        guest.theirs.close()

    asyncio.run(body())
