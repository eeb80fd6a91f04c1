"""Taking a sandbox's channel over from a server that has ended (design/0040).

A runtime has the host's end of the standby line, which is an ordinary socket. The first frame on it
makes it the channel: init drops the one before, with half frames and all, and reports what is at
work. The invariant: what is at work for the server before can send nothing that reaches a caller
of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import REPLY, RUN, TERMINAL, ChannelLost

_LENGTHS = struct.Struct(">II")
_PER_MS = 1 << 22
"""Request ids that a server may use in a millisecond without reaching those of a later server."""
_MOST_CONTEXTS = 32
_MOST_AT_WORK = 128
_MOST_LOST_BYTES = 1 << 40
_STATES = frozenset({"starting", "idle", "busy", "ending"})


@dataclass(frozen=True, slots=True)
class ContextFound:
    """A context that the sandbox has."""

    name: str
    language: str
    state: str


@dataclass(slots=True)
class Found:
    """What init reports when it is taken over; said by the sandbox, checked for its form only."""

    contexts: tuple[ContextFound, ...]
    at_work: dict[int, asyncio.Future[None]]
    """Executions and commands of the server before, each with a future of its end."""
    commands: set[int]
    """Those of them that are commands, and have not been taken on."""
    lost_bytes: int
    """Number of bytes of the sandbox that the server before had not read when it ended."""

    def note_taken_on(self, number: int) -> None:
        """Note that a command goes on for a caller of this server."""
        self.at_work.pop(number, None)
        self.commands.discard(number)

    async def wait_over(self, within_s: float) -> bool:
        """Wait for the end of all that is at work; False if something goes on."""
        running = [each for each in self.at_work.values() if not each.done()]
        if running:
            await asyncio.wait(running, timeout=within_s)
        return all(each.done() for each in self.at_work.values())


class _Leftover:
    """Listener that drops the events of one execution or command of the server before."""

    def __init__(self, over: asyncio.Future[None]) -> None:
        self._over = over

    def on_frame(self, kind: str, _header: dict[str, Any], _body: bytes) -> None:
        """See `Listener`."""
        if kind in {"done", "fail"} and not self._over.done():
            self._over.set_result(None)

    def on_lost(self, _error: ChannelLost) -> None:
        """See `Listener`."""
        if not self._over.done():
            self._over.set_result(None)


class _Report:
    """Listener for init's report; it continues the channel before the next frame is looked at."""

    def __init__(self, channel: GuestChannel, before: int) -> None:
        """`before`: the servers before have used lower ids only."""
        self._channel = channel
        self._before = before
        self.found: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

    def on_frame(self, kind: str, header: dict[str, Any], _body: bytes) -> None:
        """See `Listener`."""
        if kind != "reply":
            raise FrameError(f"take_over: {str(header.get('message'))[:200]}")
        found = _checked(header, self._before)
        for number, over in found.at_work.items():
            self._channel.listen(number, _Leftover(over), RUN | TERMINAL)
        if not self.found.done():
            self.found.set_result(found)

    def on_lost(self, error: ChannelLost) -> None:
        """See `Listener`."""
        if not self.found.done():
            self.found.set_exception(error)


async def take_over(
    line: socket.socket,
    next_standby: socket.socket,
    on_violation: Callable[[str], None],
    timeout_s: float,
) -> tuple[GuestChannel, Found]:
    """Make `line` the channel of a sandbox, and give init its end of the next standby line.

    Owns both sockets. Raises ChannelLost, SandboxBroken.
    """
    first = _first_id()
    text = json.dumps({"op": "take_over", "id": first}).encode()
    with contextlib.closing(next_standby):
        try:
            # A few bytes on an idle line: the kernel takes all of them, or none.
            socket.send_fds(line, [_LENGTHS.pack(len(text), 0) + text], [next_standby.fileno()])
        except OSError as error:
            line.close()
            raise SandboxBroken(f"take over: its standby line: {error.strerror}") from error
    channel = GuestChannel(line, on_violation=on_violation)
    report = _Report(channel, first)
    # Before init reports, it may tell of the end of what belonged to a server before: late frames.
    channel.go_on_after(first)
    channel.listen(first, report, REPLY)
    try:
        async with asyncio.timeout(timeout_s):
            return channel, await report.found
    except TimeoutError:
        channel.close("it did not answer the server that took it over")
        raise SandboxBroken(f"take over: init did not answer within {timeout_s:g} s") from None
    except BaseException:
        channel.close()
        raise


def _first_id() -> int:
    """Return an id above every one that a server before has used.

    The clock tells: a sandbox does not outlive the kernel that it counts for, and it goes on while
    the machine is suspended. What earlier servers asked for may still have frames to come, which
    must reach no request of this one.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 * _PER_MS


def _checked(header: Mapping[str, Any], before: int) -> Found:
    """Read the report of a sandbox whose requests so far have ids below `before`.

    Raises FrameError.
    """
    contexts, executions, commands = (
        header.get(name) for name in ("contexts", "executions", "commands")
    )
    if not isinstance(contexts, list) or len(contexts) > _MOST_CONTEXTS:
        raise FrameError("take_over: no proper list of contexts")
    numbers = [*_numbers(executions, before), *_numbers(commands, before)]
    unsent = header.get("unsent_bytes")
    if header.get("can_again") is not True or type(unsent) is not int:
        raise FrameError("take_over: init has no next standby line")
    loop = asyncio.get_running_loop()
    return Found(
        tuple(_context(each) for each in contexts),
        {number: loop.create_future() for number in numbers},
        set(_numbers(commands, before)),
        min(max(0, unsent), _MOST_LOST_BYTES),
    )


def _numbers(found: object, before: int) -> list[int]:
    if not isinstance(found, list) or len(found) > _MOST_AT_WORK:
        raise FrameError("take_over: no proper list of what is at work")
    if not all(type(each) is int and 0 < each < before for each in found):
        raise FrameError("take_over: a request id that is none")
    return found


def _context(found: object) -> ContextFound:
    if not isinstance(found, dict):
        raise FrameError("take_over: a context that is none")
    name, language, state = (found.get(key) for key in ("name", "language", "state"))
    if not isinstance(name, str) or not isinstance(language, str) or state not in _STATES:
        raise FrameError("take_over: a context without name, language or state")
    return ContextFound(name, language, str(state))
