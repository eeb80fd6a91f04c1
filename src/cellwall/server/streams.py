"""Sends the events of a spool over HTTP: NDJSON or SSE, from any number on.

Not the keeping of events (`spool`). Backpressure goes all the way: what the client does not take
is not taken from the spool, and the spool makes the source wait. The invariant: a line is sent
whole or not at all, and text of a program cannot make a line or an SSE field of its own, because
JSON escapes every line end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cellwall.server.errors import HttpError
from cellwall.server.lines import Line, with_gaps
from cellwall.server.overflow import AT_ONCE, lines_of
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.server.call import Call
    from cellwall.server.spool import Spool

Format = Literal["json", "ndjson", "sse"]
MEDIA: Mapping[Format, str] = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "sse": "text/event-stream",
}
_ALIVE_S = 15.0


def chosen(call: Call, offered: tuple[Format, ...]) -> Format:
    """Return what the client wants of `offered`, whose first is the default; 406 if nothing."""
    accept = call.headers.get("accept", "")
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
    call: Call, form: Format, items: AsyncIterator[Mapping[str, Any]], headers: Mapping[str, str]
) -> None:
    """Send objects as they come, numbered from 1; nothing is kept of them."""
    await call.start(200, MEDIA[form], {"cache-control": "no-store", **headers})
    number = 0
    while True:
        following = asyncio.ensure_future(anext(items, None))
        try:
            while not await call.wait(following, _ALIVE_S):
                if form == "sse":
                    await call.write(b": alive\n\n")
        except BaseException:
            following.cancel()
            raise
        item = following.result()
        if item is None:
            break
        number += 1
        value = {"seq": number, **item}
        line = Line(number, str(value["type"]), one_line(value))
        await call.write(encode(line, form).encode())
    await call.end()


def encode(line: Line, form: Format) -> str:
    """Return a line in its frame."""
    if form == "ndjson":
        return line.text + "\n"
    number = "" if line.seq is None else f"id: {line.seq}\n"
    return f"{number}event: {line.kind}\ndata: {line.text}\n\n"


def resume_from(call: Call, after: int | None) -> int:
    """Return the number after which the client wants to continue."""
    if after is not None:
        return after
    last = call.headers.get("last-event-id", "")
    return int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else 0


async def send_kept(
    call: Call, execution_id: str, form: Format, after: int, headers: Mapping[str, str]
) -> None:
    """Send everything after `after` of an execution that has ended and is in the store alone."""
    store = call.state.ledger.store
    await call.start(200, MEDIA[form], {"cache-control": "no-store", **headers})
    position = after
    while store is not None:
        chunks = await store.events(execution_id, position, AT_ONCE)
        if not chunks:
            break
        lines = with_gaps(lines_of(chunks, position), position)
        position = chunks[-1].last_seq
        await call.write("".join(encode(line, form) for line in lines).encode())
    await call.end()


async def send_spool(
    call: Call, spool: Spool, form: Format, after: int, headers: Mapping[str, str]
) -> None:
    """Send everything after `after`, live, until its end. Raises `ClientGone`."""
    reader = spool.reader(after)
    try:
        await call.start(200, MEDIA[form], {"cache-control": "no-store", **headers})
        while True:
            lines = await reader.overflowed() or reader.take()
            if lines:
                await call.write("".join(encode(line, form) for line in lines).encode())
                reader.passed()
            elif reader.is_over:
                break
            elif not await call.wait(reader.arrival(), _ALIVE_S) and form == "sse":
                await call.write(b": alive\n\n")
        await call.end()
    finally:
        reader.close()
