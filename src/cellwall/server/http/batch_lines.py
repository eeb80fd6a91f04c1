"""The programs of a batch sent one per line, read as the batch needs them.

`routes.batch` runs the programs. The invariants: a line is counted from its first byte until its
program has ended; a line that cannot be kept fails that one program, and costs no more than its
number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from cellwall.model.errors import CapacityError, UsageError
from cellwall.server.core.body_budget import Held
from cellwall.server.core.error_log import drop_traceback
from cellwall.server.core.errors import HttpError
from cellwall.server.http.endpoint import explained
from cellwall.server.schemas.requests import ExecuteBody

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from cellwall.server.core.request import Request

    MakeRoom = Callable[[], Awaitable[bool]]
    """Waits until a program of the batch has ended; returns False at once if none runs."""

MOST_PROGRAMS = 10_000
LINE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """One program of a batch, or the error of its line."""

    index: int
    body: ExecuteBody | Exception
    held: Held
    """Counter of the line's bytes; the consumer of the item calls `release`. For a program that is
    part of a whole body it counts nothing, because the request counts that body."""


class Lines:
    """The lines of one request."""

    def __init__(self, request: Request, make_room: MakeRoom) -> None:
        """`make_room` is awaited when the budget of bodies has no room for a line."""
        self._request = request
        self._make_room = make_room
        self._index = 0
        self._begin()

    def _begin(self) -> None:
        self._data = bytearray()
        self._fault: Exception | None = None
        self._held = Held(self._request.state.bodies, self._request.owner)

    async def items(self) -> AsyncGenerator[Item]:
        """Yield each program once its line is whole."""
        try:
            async for piece in self._request.pieces(self._request.settings.upload_bytes):
                *ends, rest = piece.split(b"\n")
                for part in ends:
                    await self._add(part)
                    if self._is_blank():
                        self._data.clear()
                    else:
                        yield self._taken()
                await self._add(rest)
            if not self._is_blank():
                yield self._taken()
        finally:
            self._held.release()

    async def _add(self, part: bytes) -> None:
        """Keep a part of the line, unless the line has failed."""
        if self._fault is not None or not part:
            return
        size = len(self._data) + len(part)
        if size > LINE_BYTES:
            self._spoil(
                HttpError(
                    413,
                    "too_large",
                    f"line {self._index}: above {LINE_BYTES} bytes",
                    remedy="send it by itself, or bring files in another way",
                )
            )
            return
        while self._fault is None:
            try:
                self._held.resize(size)
            except CapacityError as error:
                drop_traceback(
                    error
                )  # its frames hold this object, which is going to hold the error
                if not await self._make_room():
                    self._spoil(error)
            else:
                self._data += part
                return

    def _spoil(self, fault: Exception) -> None:
        """Drop the line's bytes and note the error; the rest of the line is skipped."""
        self._fault = fault
        self._data = bytearray()
        self._held.resize(0)

    def _is_blank(self) -> bool:
        return self._fault is None and (not self._data or self._data.isspace())

    def _taken(self) -> Item:
        """Return the line as an item, and begin another."""
        body = self._fault or _parsed(self._index, bytes(self._data))
        item = Item(self._index, body, self._held)
        self._index += 1
        self._begin()
        return item


def _parsed(index: int, line: bytes) -> ExecuteBody | Exception:
    if index >= MOST_PROGRAMS:
        return UsageError(f"batch: more than {MOST_PROGRAMS} programs", remedy="send another batch")
    try:
        return ExecuteBody.model_validate_json(line)
    except ValidationError as error:
        return explained(error, f"line {index}")
