"""Screens: terminals that this door holds for its clients, who come and go by pid.

A terminal of the server has one client, and the protocol's have any number: the screen is that one,
and gives what it reads to all. What comes while no client reads is gone, as the protocol has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon import process_events
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid, timeout_s

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.daemon.users import Account
    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.client.terminals import Terminal

_DETACH_S = 604_800.0
"""Seconds that a terminal waits for this door after a restart, if the operator allows that much."""
_MOST_PIECES = 16
_ROWS, _COLS = 24, 80


class _Reader:
    """One client that reads a screen."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_PIECES)
        self.has_left = asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Give data to the client; wait while it takes none, unless it leaves."""
        putting = asyncio.ensure_future(self.pieces.put(data))
        leaving = asyncio.ensure_future(self.has_left.wait())
        try:
            await asyncio.wait({putting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()
            leaving.cancel()

    def wake(self) -> None:
        """Tell a client that waits for data that none comes any more."""
        if self.pieces.empty():
            self.pieces.put_nowait(None)


class Screen:
    """One terminal."""

    def __init__(self, seat: Seat, terminal: Terminal) -> None:
        """Begin to read."""
        self.terminal = terminal
        self._readers: list[_Reader] = []
        self._is_over = False
        self._task = seat.request.state.tasks.spawn(self._read())

    async def _read(self) -> None:
        try:
            async for data in self.terminal:
                for reader in list(self._readers):
                    await reader.put(data)
        finally:
            self._is_over = True
            for reader in self._readers:
                reader.wake()

    @contextlib.contextmanager
    def reading(self) -> Iterator[AsyncGenerator[Value, None]]:
        """Give a client what is written from now on, and the end."""
        reader = _Reader()
        self._readers.append(reader)
        try:
            yield self._events(reader)
        finally:
            reader.has_left.set()
            self._readers.remove(reader)

    async def _events(self, reader: _Reader) -> AsyncGenerator[Value, None]:
        while not self._is_over or not reader.pieces.empty():
            data = await reader.pieces.get()
            if data is None:
                break
            for each in process_events.data("pty", data):
                yield each
        if self.terminal.is_replaced:
            raise ConnectError("aborted", "another client of the server has taken the terminal")
        yield process_events.ended((await self.terminal.wait()).outcome)

    async def aclose(self) -> None:
        """Leave the terminal running, without its readers."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(OSError):
            await self.terminal.detach()


async def opened(seat: Seat, who: Account, config: Value, pty: Value) -> Screen:
    """Start a program on a terminal."""
    cwd = config.get("cwd")
    terminal = await seat.sandbox.commands.start(
        [config["cmd"], *config.get("args", [])],
        pty=size_of(pty),
        cwd=who.path(cwd) if cwd else None,
        env=config.get("envs") or None,
        user=who.wanted,
        timeout=timeout_s(seat.request.headers),
        detach_s=_DETACH_S,
    )
    return Screen(seat, terminal)


async def attached(seat: Seat, command_id: str) -> Screen:
    """Take a terminal that an earlier server had, or another client opened."""
    return Screen(seat, await seat.sandbox.commands.attach(command_id))


def size_of(pty: Value) -> tuple[int, int]:
    """Return rows and columns. Raises ConnectError."""
    size = pty.get("size", {})
    rows, cols = size.get("rows", 0) or _ROWS, size.get("cols", 0) or _COLS
    if max(rows, cols) > 1000:
        raise invalid("pty: a size has at most 1000 rows and columns")
    return rows, cols
