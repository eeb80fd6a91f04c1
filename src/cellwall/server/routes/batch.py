"""Route of many programs in one request, for evaluation and reinforcement learning.

Each is an execution of its own in a sandbox of its own; results are sent as they finish. The
invariant: no more programs are read than run or wait to be sent, so a slow reader slows the batch
and memory stays flat; one bad program fails only itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cellwall.model.errors import CapacityError, UsageError
from cellwall.server.core.body_budget import Held
from cellwall.server.core.disconnects import cancel_on_disconnect
from cellwall.server.core.errors import failure
from cellwall.server.core.request import ClientGone
from cellwall.server.http.batch_lines import Item, Lines
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, explained, learn_secrets
from cellwall.server.routes.execute import oneshot
from cellwall.server.schemas.requests import BatchBody, ExecuteBody
from cellwall.server.streaming.streams import MEDIA, Pulse, chosen
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.executions.record import ExecutionRecord

_DEFAULT_CONCURRENCY = 32
_MOST_PAUSE_S = 1.0
"""Seconds at most between two attempts to begin a program while none of its batch runs; each
attempt checks the program anew."""


async def batch(request: Request) -> None:
    """`POST /executions/batch`."""
    chosen(request, ("ndjson",))
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == MEDIA["ndjson"]:
        lined = _Batch(request, _DEFAULT_CONCURRENCY)
        await lined.run(Lines(request, lined.make_room).items())
        return
    body = await body_of(request, BatchBody, request.settings.body_bytes)
    concurrency = min(body.concurrency or _DEFAULT_CONCURRENCY, request.settings.most_running)
    await _Batch(request, concurrency).run(_listed(request, body.executions))


async def _listed(request: Request, programs: list[dict[str, Any]]) -> AsyncGenerator[Item]:
    for index, program in enumerate(programs):
        held = Held(request.state.bodies, request.owner)
        try:
            yield Item(index, ExecuteBody.model_validate(program), held)
        except ValidationError as error:
            yield Item(index, explained(error, f"executions[{index}]"), held)


class _Batch:
    """One batch under way."""

    def __init__(self, request: Request, concurrency: int) -> None:
        self._request = request
        self._concurrency = concurrency
        self._running: dict[asyncio.Future[None], tuple[int, ExecutionRecord]] = {}
        self._pulse = Pulse(request)
        self._count = 0
        self._failed = 0

    async def run(self, items: AsyncGenerator[Item]) -> None:
        """Run the whole batch. Raises `ClientGone`."""
        await cancel_on_disconnect(self._request, self._run(items))

    async def _run(self, items: AsyncGenerator[Item]) -> None:
        request = self._request
        await request.start(200, MEDIA["ndjson"], {"cache-control": "no-store"})
        try:
            async with self._pulse:
                await self._do(items)
            await self._send({"type": "end", "count": self._count, "failed": self._failed})
            await request.end()
        finally:
            for _, record in self._running.values():
                record.cancel()

    async def _do(self, items: AsyncGenerator[Item]) -> None:
        async with aclosing(items):
            async for item in items:
                await self._take(item)
        while self._running:
            await self._send_ended()

    async def _take(self, item: Item) -> None:
        try:
            while len(self._running) >= self._concurrency:
                await self._send_ended()
            self._count += 1
            if isinstance(item.body, Exception):
                await self._send_failure(item.index, item.body)
                return
            record = await self._begin(item, item.body)
            if record is not None:
                self._running[record.ended] = (item.index, record)
        finally:
            item.held.release()

    async def _begin(self, item: Item, body: ExecuteBody) -> ExecutionRecord | None:
        pause_s = 0.1
        while True:
            try:
                return self._start(item, body)
            except CapacityError:
                # The batch waits: other callers fill the queue, and it goes on when the queue
                # empties.
                if not await self.make_room():
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - it belongs to this one program
                await self._send_failure(item.index, error)
                return None

    def _start(self, item: Item, body: ExecuteBody) -> ExecutionRecord:
        if body.background:
            raise UsageError("background: not for the programs of a batch", remedy="leave it out")
        if body.tools is not None:
            raise UsageError("tools: not for the programs of a batch", remedy="send it by itself")
        request = self._request
        learn_secrets(request, body)
        order = oneshot(request, body, item.held.size, is_streamed=False)
        record = request.state.executions.start(order)
        item.held.until(record.ended)
        return record

    async def make_room(self) -> bool:
        """Wait until a program of this batch has ended; False at once if none runs."""
        if not self._running:
            return False
        await self._send_ended()
        return True

    async def _send_ended(self) -> None:
        """Wait until a program has ended, and send the results of all that have."""
        loop = asyncio.get_running_loop()
        first: asyncio.Future[None] = loop.create_future()

        def wake(_: asyncio.Future[None]) -> None:
            if not first.done():
                first.set_result(None)

        for future in self._running:
            future.add_done_callback(wake)
        try:
            await self._call_wait(first)
        finally:
            for future in self._running:
                future.remove_done_callback(wake)
        for future in [each for each in self._running if each.done()]:
            index, record = self._running.pop(future)
            if record.error is not None:
                await self._send_failure(index, record.error)
            else:
                await self._send({"index": index, **record.as_json()})

    async def _call_wait(self, future: asyncio.Future[None]) -> None:
        if self._request.is_body_read:
            await self._request.wait(future)
        else:
            await future

    async def _send_failure(self, index: int, error: Exception) -> None:
        if isinstance(error, ClientGone):
            raise error
        self._failed += 1
        await self._send({"index": index, "error": failure(error, self._request.request_id)})

    async def _send(self, value: dict[str, Any]) -> None:
        await self._pulse.write(one_line(value) + "\n")


ENDPOINTS = (
    Endpoint(
        "POST",
        "/executions/batch",
        batch,
        "Run up to 10,000 programs; results come as they finish",
        {200: Answer("Results, one per line.", None, (MEDIA["ndjson"],))},
        body=BatchBody,
        tags=("executions",),
    ),
)
