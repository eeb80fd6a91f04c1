"""Many programs in one request, for evaluation and reinforcement learning.

Each is an execution of its own in a sandbox of its own; results are sent as they finish. The
invariant: no more programs are read than run or wait to be sent, so a slow reader slows the batch
and memory stays flat; one bad program spoils only itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cellwall.model.errors import CapacityError, UsageError
from cellwall.server.bodies import Held
from cellwall.server.call import ClientGone
from cellwall.server.endpoint import Answer, Endpoint, body_of, explained, learn_secrets
from cellwall.server.errors import HttpError, failure
from cellwall.server.routes.execute import oneshot
from cellwall.server.schemas import BatchBody, ExecuteBody
from cellwall.server.streams import MEDIA, chosen
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.server.call import Call
    from cellwall.server.execution_record import ExecutionRecord

_MOST = 10_000
_LINE_BYTES = 16 * 1024 * 1024
_DEFAULT_CONCURRENCY = 32
Item = tuple[int, ExecuteBody | Exception, int]
"""Its number, what it is, and its bytes unless they are counted as part of a whole body."""


async def batch(call: Call) -> None:
    """`POST /executions/batch`."""
    chosen(call, ("ndjson",))
    media = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == MEDIA["ndjson"]:
        await _Batch(call, _DEFAULT_CONCURRENCY).run(_read_lines(call))
        return
    body = await body_of(call, BatchBody, call.settings.body_bytes)
    concurrency = min(body.concurrency or _DEFAULT_CONCURRENCY, call.settings.most_running)
    await _Batch(call, concurrency).run(_listed(body.executions))


async def _listed(programs: list[dict[str, Any]]) -> AsyncIterator[Item]:
    for index, program in enumerate(programs):
        try:
            yield index, ExecuteBody.model_validate(program), 0
        except ValidationError as error:
            yield index, explained(error, f"executions[{index}]"), 0


async def _read_lines(call: Call) -> AsyncIterator[Item]:
    unread = bytearray()
    index = 0
    async for piece in call.pieces(call.settings.upload_bytes):
        unread += piece
        call.holding().resize(len(unread))
        lines: list[bytes] = []
        if b"\n" in piece:
            *lines, rest = bytes(unread).split(b"\n")
            unread = bytearray(rest)
            call.holding().resize(len(unread))  # programs are counted by themselves, once taken
        if len(unread) > _LINE_BYTES:
            raise HttpError(413, "too_large", f"line {index}: above {_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                yield index, _parsed(index, line), len(line)
                index += 1
    if unread.strip():
        yield index, _parsed(index, bytes(unread)), len(unread)


def _parsed(index: int, line: bytes) -> ExecuteBody | Exception:
    if index >= _MOST:
        return UsageError(f"batch: more than {_MOST} programs", remedy="send another batch")
    try:
        return ExecuteBody.model_validate_json(line)
    except ValidationError as error:
        return explained(error, f"line {index}")


class _Batch:
    """One batch under way."""

    def __init__(self, call: Call, concurrency: int) -> None:
        self._call = call
        self._concurrency = concurrency
        self._running: dict[asyncio.Future[None], tuple[int, ExecutionRecord]] = {}
        self._count = 0
        self._failed = 0

    async def run(self, items: AsyncIterator[Item]) -> None:
        """Do all of it."""
        call = self._call
        await call.start(200, MEDIA["ndjson"], {"cache-control": "no-store"})
        try:
            async for index, item, size in items:
                await self._take(index, item, size)
            while self._running:
                await self._send_ended()
            end = {"type": "end", "count": self._count, "failed": self._failed}
            await call.write((one_line(end) + "\n").encode())
            await call.end()
        finally:
            for _, record in self._running.values():
                record.cancel()

    async def _take(self, index: int, item: ExecuteBody | Exception, size: int) -> None:
        while len(self._running) >= self._concurrency:
            await self._send_ended()
        self._count += 1
        record = await self._begin(index, item, size)
        if record is not None:
            self._running[record.ended] = (index, record)

    async def _begin(
        self, index: int, item: ExecuteBody | Exception, size: int
    ) -> ExecutionRecord | None:
        while True:
            try:
                if isinstance(item, Exception):
                    raise item
                if item.background:
                    raise UsageError(
                        "background: not for the programs of a batch", remedy="leave it out"
                    )
                if item.tools is not None:
                    raise UsageError(
                        "tools: not for the programs of a batch", remedy="send it by itself"
                    )
                return self._start(item, size)
            except CapacityError:
                # The batch is patient: others fill the queue, and ours will run when it empties.
                if self._running:
                    await self._send_ended()
                else:
                    await asyncio.sleep(0.1)
            except Exception as error:  # noqa: BLE001 - it belongs to this one program
                await self._send_failure(index, error)
                return None

    def _start(self, item: ExecuteBody, size: int) -> ExecutionRecord:
        call = self._call
        learn_secrets(call, item)
        order = oneshot(call, item, size, is_streamed=False)
        held = Held(call.state.bodies, call.owner)
        held.resize(size)
        try:
            record = call.state.executions.start(order)
            held.until(record.ended)
        finally:
            held.let_go()
        return record

    async def _send_ended(self) -> None:
        """Wait until something has ended, and send all that has."""
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
        if self._call.is_body_read:
            await self._call.wait(future)
        else:
            await future

    async def _send_failure(self, index: int, error: Exception) -> None:
        if isinstance(error, ClientGone):
            raise error
        self._failed += 1
        await self._send({"index": index, "error": failure(error, self._call.request_id)})

    async def _send(self, value: dict[str, Any]) -> None:
        await self._call.write((one_line(value) + "\n").encode())


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
