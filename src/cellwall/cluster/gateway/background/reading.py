"""Requests about programs in the background: while they wait, at their node, and after their end.

Begun by `background`. While a node has a program, it answers. The invariant: a program that was
accepted is never told not to be there, wherever it is on its way.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from cellwall.cluster.gateway.background.outcomes import (
    cancelled,
    failed_by,
    last_event,
    notice_of,
    object_of,
)
from cellwall.cluster.gateway.routing import Way
from cellwall.cluster.gateway.wire.asking import Whole
from cellwall.cluster.gateway.wire.heads import Shaped
from cellwall.model.errors import NodeLost, NodeUnreachable, NotFound, UsageError
from cellwall.model.ids import new_id
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.cluster.directory.programs import Programs, Seen
    from cellwall.cluster.gateway.book import Book
    from cellwall.cluster.gateway.data.visit import Visit
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.front import ClientLink

_LOOK_S, _MOST_LOOK_S = 0.1, 1.0
"""Seconds to the second look at a program that waits; each is twice as long, up to the latter: all
look over one connection to the directory."""
_CANCEL_S = 5.0
"""Seconds for which a program on its way to a node is looked for, to be cancelled there."""
_MOST_WAIT_S = 60.0
_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?")
_MEDIA = {"ndjson": "application/x-ndjson", "sse": "text/event-stream"}


class Reading:
    """See the module."""

    def __init__(self, gateway: Gateway, programs: Programs) -> None:
        self._gateway = gateway
        self._book: Book = gateway.book
        self._programs = programs

    async def get(self, visit: Visit, program_id: str) -> None:
        """`GET /executions/{id}`."""
        wait_s = _wait_of(visit.head.target)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        look_s = _LOOK_S
        while True:
            seen = await self._seen(visit, program_id)
            left_s = max(0.0, until_s - loop.time())
            if seen.state != "queued" and seen.answer is None:
                target = f"/executions/{program_id}?wait={min(left_s, wait_s):.3f}"
                found = await self._asked(visit, seen, target)
                if found is not None:
                    visit.pass_on(found)
                    return
                if seen.state == "done":
                    raise _none(program_id)
            if seen.answer is not None or left_s <= 0 or visit.is_gone:
                visit.answer(200, object_of(seen))
                return
            await asyncio.sleep(min(look_s, left_s))
            look_s = min(2 * look_s, _MOST_LOOK_S)

    async def _asked(self, visit: Visit, seen: Seen, target: str) -> Whole | None:
        """Return the answer of a program's node; None: the program is not there, or not yet."""
        try:
            node = self._book.of(seen.node, "execution", "")
        except NodeLost as error:
            value = failed_by(seen.shown, error, visit.request_id)
            return _whole(value)
        found = await visit.call(node, target=target)
        return None if found.status == 404 else found

    async def events(self, visit: Visit, program_id: str, client: ClientLink) -> None:
        """`GET /executions/{id}/events`: those of its node, once it is there."""
        form = _form_of(visit.head.first(b"accept"))
        look_s = _LOOK_S
        while not visit.is_gone:
            seen = await self._seen(visit, program_id)
            if seen.answer is not None and (not seen.node or seen.node in self._book.lost):
                data = last_event(json.loads(seen.answer), form)
                shaped = Shaped(200, data, _MEDIA[form], {"cache-control": "no-store"})
                self._gateway.give(client, visit.head, shaped, visit.request_id)
                return
            if seen.state == "done" or await self._is_there(visit, seen, program_id):
                await visit.go(Way("object", seen.node, "execution", program_id))
                return
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, _MOST_LOOK_S)

    async def _is_there(self, visit: Visit, seen: Seen, program_id: str) -> bool:
        """Report whether a program is at its node; of a lost one the end is told in a moment."""
        if seen.state == "queued" or seen.node in self._book.lost:
            return False
        return await self._asked(visit, seen, f"/executions/{program_id}") is not None

    async def cancel(self, visit: Visit, program_id: str) -> None:
        """`DELETE /executions/{id}`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _CANCEL_S
        while True:
            seen = await self._seen(visit, program_id)
            if seen.state == "done" or seen.node in self._book.lost:
                visit.answer(200, {"message": "it had ended", "id": program_id})
                return
            if seen.state == "queued" and await self._cancelled(visit, seen, program_id):
                visit.answer(200, {"message": "cancelled", "id": program_id})
                return
            found = None
            if seen.state == "begun":
                found = await self._asked(visit, seen, f"/executions/{program_id}")
            if found is not None:
                visit.pass_on(found)
                return
            if loop.time() > until_s:
                raise NodeUnreachable(
                    f"execution {program_id}: it is on its way to a node",
                    retry_after_s=1.0,
                    remedy="cancel it again",
                )
            await asyncio.sleep(_LOOK_S)

    async def _cancelled(self, visit: Visit, seen: Seen, program_id: str) -> bool:
        value = cancelled(seen.shown)
        notice = (new_id(), notice_of(value))
        return await self._programs.cancel(visit.tenant, program_id, one_line(value), notice)

    async def _seen(self, visit: Visit, program_id: str) -> Seen:
        """Return the caller's program. Raises NotFound, StoreBusy."""
        seen = await self._programs.find(visit.tenant, program_id)
        if seen is None:
            raise _none(program_id)
        return seen


def _whole(value: dict[str, object]) -> Whole:
    return Whole(200, [], one_line(value).encode())


def _none(program_id: str) -> NotFound:
    return NotFound(
        f"execution {program_id[:64]!r}: there is none",
        remedy="look at your own; it may have expired",
    )


def _wait_of(target: bytes) -> float:
    """Return the seconds that a query says. Raises UsageError."""
    query = target.partition(b"?")[2].decode("latin-1")
    wait_s = 0.0
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "wait" or not _NUMBER.fullmatch(value) or float(value) > _MOST_WAIT_S:
            raise UsageError(
                f"query: {name[:40]}: it is unknown, or no number from 0 to {_MOST_WAIT_S:g}",
                remedy="see /docs for the fields",
            )
        wait_s = float(value)
    return wait_s


def _form_of(accept: str) -> str:
    is_sse = "text/event-stream" in accept.lower() and "ndjson" not in accept.lower()
    return "sse" if is_sse else "ndjson"
