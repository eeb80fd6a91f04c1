"""Streams of a spool's events over HTTP: NDJSON or SSE, from any number on.

Events are kept by `spool`. Backpressure is end to end: events that the client does not take are not
taken from the spool, and the spool makes the source wait. The invariant: a line is sent whole or
not at all, and text of a program cannot make a line or an SSE field of its own, because JSON
escapes every line end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cellwall.server.core.errors import HttpError
from cellwall.server.core.request import ClientGone
from cellwall.server.streaming.event_line import Line, with_gaps
from cellwall.server.streaming.overflow import AT_ONCE, lines_of
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.streaming.spool import Spool

Format = Literal["json", "ndjson", "sse"]
MEDIA: Mapping[Format, str] = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "sse": "text/event-stream",
}
_ALIVE: Mapping[Format, bytes] = {"json": b"", "ndjson": b" ", "sse": b": alive\n\n"}
"""Bytes that show that a quiet stream is alive. JSON parsers skip white space before a value, so
NDJSON needs no extra line, which every client would have to know."""


def chosen(request: Request, offered: tuple[Format, ...]) -> Format:
    """Return the first format of `Accept` that is offered; 406 if there is none.

    A wildcard, or no `Accept`, means the first of `offered`.
    """
    accept = request.headers.get("accept", "")
    for part in accept.split(","):
        kind = part.partition(";")[0].strip().lower()
        for each in offered:
            if kind == MEDIA[each]:
                return each
        if kind in {"", "*/*", "application/*", "text/*"}:
            return offered[0]
    raise HttpError(
        406,
        "not_acceptable",
        "accept: nothing of that is offered here",
        remedy="accept one of " + ", ".join(MEDIA[each] for each in offered),
    )


async def send_items(
    request: Request,
    form: Format,
    items: AsyncIterator[Mapping[str, Any]],
    headers: Mapping[str, str],
) -> None:
    """Send objects as they come, numbered from 1; none of them is kept."""
    await request.start(200, MEDIA[form], {"cache-control": "no-store", **headers})
    number = 0
    while True:
        following = asyncio.ensure_future(anext(items, None))
        try:
            while not await request.wait(following, quiet_s(request)):
                await request.write(_ALIVE[form])
        except BaseException:
            following.cancel()
            raise
        item = following.result()
        if item is None:
            break
        number += 1
        value = {"seq": number, **item}
        line = Line(number, str(value["type"]), one_line(value))
        await request.write(encode(line, form).encode())
    await request.end()


def quiet_s(request: Request) -> float | None:
    """Return the seconds of quiet before a sign of life; None: no signs of life."""
    return request.settings.alive_s or None


class Pulse:
    """Sends signs of life on a stream of lines whose writer waits for more than one thing."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._at = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    async def write(self, line: str) -> None:
        """Write one line, whole."""
        self._at = time.monotonic()
        await self._request.write(line.encode())

    async def _beat(self, pause_s: float) -> None:
        with contextlib.suppress(ClientGone):  # the writer of the lines learns it as well
            while True:
                await asyncio.sleep(max(0.01, self._at + pause_s - time.monotonic()))
                if time.monotonic() >= self._at + pause_s:
                    self._at = time.monotonic()
                    await self._request.write(_ALIVE["ndjson"])

    async def __aenter__(self) -> Pulse:
        """Start the signs of life."""
        pause_s = quiet_s(self._request)
        if pause_s is not None:
            self._task = asyncio.ensure_future(self._beat(pause_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the signs of life."""
        # The ended task's exception has frames, which hold this object: no reference cycle, or the
        # request's body stays in it.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def encode(line: Line, form: Format) -> str:
    """Return a line in its frame."""
    if form == "ndjson":
        return line.text + "\n"
    number = "" if line.seq is None else f"id: {line.seq}\n"
    return f"{number}event: {line.kind}\ndata: {line.text}\n\n"


def resume_from(request: Request, after: int | None) -> int:
    """Return the number after which the client wants to continue."""
    if after is not None:
        return after
    last = request.headers.get("last-event-id", "")
    return int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else 0


async def send_kept(
    request: Request, execution_id: str, form: Format, after: int, headers: Mapping[str, str]
) -> None:
    """Send all events after `after` of an ended execution that is only in the store."""
    store = request.state.ledger.store
    await request.start(200, MEDIA[form], {"cache-control": "no-store", **headers})
    position = after
    while store is not None:
        chunks = await store.events(execution_id, position, AT_ONCE)
        if not chunks:
            break
        lines = with_gaps(lines_of(chunks, position), position)
        position = chunks[-1].last_seq
        await request.write("".join(encode(line, form) for line in lines).encode())
    await request.end()


async def send_spool(
    request: Request, spool: Spool, form: Format, after: int, headers: Mapping[str, str]
) -> None:
    """Send all events after `after`, live, until the spool's end. Raises `ClientGone`."""
    reader = spool.reader(after)
    try:
        await request.start(200, MEDIA[form], {"cache-control": "no-store", **headers})
        while True:
            lines = await reader.overflowed() or reader.take()
            if lines:
                await request.write("".join(encode(line, form) for line in lines).encode())
                reader.passed()
            elif reader.is_over:
                break
            elif not await request.wait(reader.arrival(), quiet_s(request)):
                await request.write(_ALIVE[form])
        await request.end()
    finally:
        reader.close()
