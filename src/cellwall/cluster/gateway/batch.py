"""Many programs in one request, spread over the nodes: results come as they finish.

The same protocol as a server's (`server.routes.batch`), and no bound on their number where they
come one per line. The invariants: no more programs are held than run or wait to be sent, so a slow
reader slows the batch; one bad program fails only itself; no program begins twice.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from cellwall.cluster.gateway import errand
from cellwall.cluster.gateway.routing import Way
from cellwall.cluster.gateway.wire.heads import (
    LAST_CHUNK,
    ResponseHead,
    chunk,
    framing_for,
    response_bytes,
)
from cellwall.model.errors import CapacityError, CellwallError, UsageError
from cellwall.server.core.body_budget import Held
from cellwall.server.core.error_log import log_failure
from cellwall.server.core.errors import failure
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead
    from cellwall.cluster.gateway.work.turns import Turn

_WAY = Way("batch", path="/executions/batch")
_NDJSON = "application/x-ndjson"
_AT_A_NODE = 16
"""Programs of one batch that are at each ready node at once, where the caller names no number."""
_MOST = 4096
_BODY_BYTES = 64 << 20
_LINE_BYTES = 16 << 20
_UNUSUAL = (b'"tools"', b'"background"', b"\\u")
"""What a program has that may say what those of a batch may not; a letter may be escaped."""
_PAUSE_S, _MOST_PAUSE_S = 0.1, 1.0
_ALIVE = b" "
"""What a stream sends so often to show that it lives; as a server's (`streaming.streams`)."""


class Batch:
    """One batch under way."""

    def __init__(
        self, gateway: Gateway, client: ClientLink, head: RequestHead, caller: Caller
    ) -> None:
        """Nothing of its body is there yet."""
        self._gateway = gateway
        self._client = client
        self._head = head
        self._caller = caller
        self._tenant = caller.principal.tenant
        self._held = Held(gateway.bodies, caller.principal.tenant)
        self._request_id = gateway.request_id_of(head)
        self._said = [*caller.said, (b"x-request-id", self._request_id.encode())]
        media = head.first(b"content-type").partition(";")[0].strip().lower()
        self._is_lined = media == _NDJSON
        self._body = bytearray()
        self._programs: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        self._is_held = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._count = self._failed = 0
        self._task: asyncio.Task[None] | None = None
        self._concurrency = 0
        self._fault: CellwallError | None = None

    def begin(self) -> Batch:
        """Begin to answer."""
        self._task = self._gateway.tasks.spawn(self._run())
        return self

    # -- of the client ---------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body; lines are programs at once."""
        if self._fault is not None:
            return
        try:
            self._held.resize(self._held.size + len(data))
        except CapacityError as error:
            self._refuse(error)
            return
        self._body += data
        most = _LINE_BYTES if self._is_lined else _BODY_BYTES
        if self._is_lined:
            *lines, rest = bytes(self._body).split(b"\n")
            self._body = bytearray(rest)
            for line in lines:
                self._offer(line)
        if len(self._body) > most:
            self._refuse(UsageError("batch: a program is too long", remedy="send less at once"))
        elif self._waiting > self._most_waiting and not self._is_held:
            self._is_held = True
            self._client.hold()

    @property
    def _most_waiting(self) -> int:
        return 2 * max(1, self._concurrency)

    def _offer(self, line: bytes) -> None:
        if line.strip():
            self._waiting += 1
            self._programs.put_nowait(line)

    def on_whole(self) -> None:
        """Take the end of the body."""
        if self._is_lined:
            self._offer(bytes(self._body))
        else:
            self._take_whole(bytes(self._body))
        self._body.clear()
        self._programs.put_nowait(None)

    def _take_whole(self, body: bytes) -> None:
        """Take a body that has all programs. What it says wrongly is refused as a whole."""
        try:
            value = json.loads(body)
            programs = value["executions"]
            concurrency = value.get("concurrency")
            if not isinstance(programs, list) or not programs:
                raise ValueError("executions is no list of programs")
            if concurrency is not None and not (type(concurrency) is int and concurrency > 0):
                raise ValueError("concurrency is no number above 0")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._refuse(UsageError(f"batch: {error}", remedy="see /docs"))
            return
        self._concurrency = min(concurrency or 0, _MOST)
        for each in programs:
            self._offer(json.dumps(each).encode())

    def _refuse(self, error: CellwallError) -> None:
        self._fault = self._fault or error
        self._programs.put_nowait(None)

    def on_full(self) -> None:
        """Send no more for the moment."""
        self._has_room.clear()

    def on_room(self) -> None:
        """Send again."""
        self._has_room.set()

    def on_gone(self) -> None:
        """End everything: the results have no reader."""
        if self._task is not None:
            self._task.cancel()

    # -- the programs ----------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._answer()
        finally:
            self._held.release()

    async def _answer(self) -> None:
        first = await self._programs.get()
        if self._fault is not None:
            self._gateway.refuse(self._client, self._head, self._fault, self._request_id)
            self._client.is_closing = True
            self._client.done()
            return
        self._begin_answer()
        alive = asyncio.get_running_loop().create_task(self._say_alive())
        try:
            async with asyncio.TaskGroup() as group:
                await self._spread(first, group)
        finally:
            alive.cancel()
        await self._send({"type": "end", "count": self._count, "failed": self._failed})
        self._client.write(LAST_CHUNK if self._client.has_chunks else b"")
        self._client.done()

    async def _spread(self, first: bytes | None, group: asyncio.TaskGroup) -> None:
        """Begin each program once there is a place for it."""
        ready = sum(node.state == "ready" for node in self._gateway.book.nodes)
        self._concurrency = self._concurrency or min(_MOST, _AT_A_NODE * max(1, ready))
        places = asyncio.Semaphore(self._concurrency)
        program = first
        while program is not None:
            await places.acquire()
            index, self._count = self._count, self._count + 1
            group.create_task(self._one(index, program, places))
            self._waiting -= 1
            if self._is_held and self._waiting <= self._most_waiting // 2:
                self._is_held = False
                self._client.go_on()
            program = await self._programs.get()
        if self._fault is not None:  # in the middle of the lines
            self._failed += 1
            await self._send({"index": self._count, "error": self._error(self._fault)})

    async def _one(self, index: int, program: bytes, places: asyncio.Semaphore) -> None:
        try:
            try:
                value = await self._execution(program)
            except Exception as error:  # noqa: BLE001 - it belongs to this one program
                self._failed += 1
                value = {"error": self._error(error)}
            await self._send({"index": index, **value})
        finally:
            if self._is_lined:
                self._held.resize(max(0, self._held.size - len(program)))
            places.release()

    async def _execution(self, program: bytes) -> dict[str, Any]:
        """Return a program's execution; it waits while no node has room."""
        _check(program)
        pause_s = _PAUSE_S
        while True:
            turn: Turn | None = None
            try:
                async with self._gateway.place(self._tenant):
                    turn = self._gateway.turns.ask(self._tenant)
                    await turn.come()
                    return await errand.run(self._gateway.book, self._said, program, turn)
            except CapacityError as error:
                if turn is not None and error.code != CapacityError.code:
                    raise  # a quota of the tenant's, at a node
            finally:
                if turn is not None:
                    turn.leave()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def _error(self, error: Exception) -> dict[str, Any]:
        log_failure(error, self._request_id)
        return failure(error, self._request_id)

    # -- the answer ------------------------------------------------------------------------

    def _begin_answer(self) -> None:
        client = self._client
        headers = [
            (b"content-type", _NDJSON.encode()),
            (b"cache-control", b"no-store"),
            (b"x-request-id", self._request_id.encode()),
        ]
        is_kept = client.is_kept and client.has_chunks
        if not is_kept:
            client.is_closing = True
        framing = framing_for(None, has_chunks=client.has_chunks)
        head = ResponseHead(200, headers, None)
        client.write(response_bytes(head, is_kept=is_kept, framing=framing))
        self._gateway.counted(self._head, head.status)
        if self._gateway.trail is not None:
            self._gateway.trail.passed(
                self._caller, client.peer, _WAY, "", head.status, self._request_id
            )

    async def _send(self, value: dict[str, Any]) -> None:
        await self._has_room.wait()
        data = (one_line(value) + "\n").encode()
        self._client.write(chunk(data) if self._client.has_chunks else data)

    async def _say_alive(self) -> None:
        every_s = self._gateway.alive_s
        while every_s:
            await asyncio.sleep(every_s)
            self._client.write(chunk(_ALIVE) if self._client.has_chunks else _ALIVE)


def _check(program: bytes) -> None:
    """Refuse what a program of a batch may not have. Raises UsageError."""
    if not any(word in program for word in _UNUSUAL):
        return
    try:
        value = json.loads(program)
        tools, is_background = value.get("tools"), value.get("background")
    except (ValueError, AttributeError, RecursionError):
        return  # the node says what is wrong with it
    if tools is not None:
        raise UsageError("tools: not for the programs of a batch", remedy="send it by itself")
    if is_background:
        raise UsageError("background: not for the programs of a batch", remedy="leave it out")
