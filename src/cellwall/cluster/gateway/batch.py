"""Many programs in one request, spread over the nodes: results come as they finish.

The same protocol as a server's (`server.routes.batch`), and no bound on their number where they
come one per line. The invariants: no more programs are held than run or wait to be sent, and none
begins while the reader takes nothing, so a slow reader slows its own batch; answers that wait for
the reader count in the budget of bodies; one bad program fails only itself; no program begins
twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.cluster.gateway import errand
from cellwall.cluster.gateway.routing import Way
from cellwall.cluster.gateway.tenants.lending import lend, names_in
from cellwall.cluster.gateway.wire.heads import (
    LAST_CHUNK,
    ResponseHead,
    chunk,
    framing_for,
    response_bytes,
)
from cellwall.cluster.gateway.work.programs import Lines, Listed, check
from cellwall.model.errors import CapacityError, CellwallError, Interrupted
from cellwall.server.core.body_budget import Held
from cellwall.server.core.error_log import log_failure
from cellwall.server.core.errors import failure
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.lead import Lead
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead
    from cellwall.cluster.gateway.work.turns import Turn

_WAY = Way("batch", path="/executions/batch")
_NDJSON = "application/x-ndjson"
_AT_A_NODE = 16
"""Programs of one batch that are at each ready node at once, where the caller names no number."""
_MOST = 4096
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
        self._programs = Lines(self._on_empty) if media == _NDJSON else Listed()
        self._under_way_bytes = 0
        """Bytes of the programs of lines that were taken."""
        self._unsent_bytes = 0
        """Bytes of answers that the client has not taken."""
        self._is_held = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._sending = asyncio.Lock()
        self._count = self._failed = 0
        self._task: asyncio.Task[None] | None = None
        self._concurrency = 0
        self._is_refused = False

    def begin(self) -> Batch:
        """Begin to answer."""
        self._task = self._gateway.tasks.spawn(self._run())
        return self

    # -- of the client ---------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self._is_refused:
            return
        try:
            self._recount(len(data))
            self._programs.feed(data)
        except CellwallError as error:
            self._is_refused = True
            self._programs.end(error)
        if self._programs.waiting > self._most_waiting and not self._is_held:
            self._is_held = True
            self._client.hold()

    @property
    def _most_waiting(self) -> int:
        return 2 * max(1, self._concurrency)

    def _recount(self, more: int = 0) -> None:
        """Count what is held, and `more` bytes. Raises CapacityError if there is no room."""
        size = self._programs.size + self._under_way_bytes + self._unsent_bytes
        self._held.resize(size + more)

    def _on_empty(self) -> None:
        self._recount()
        self._go_on()

    def _go_on(self) -> None:
        if self._is_held:
            self._is_held = False
            self._client.go_on()

    def on_whole(self) -> None:
        """Take the end of the body."""
        if not self._is_refused:
            self._programs.end()

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
        try:
            first = await self._take()
        except CellwallError as error:
            self._gateway.refuse(self._client, self._head, error, self._request_id)
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
        end = {"type": "end", "count": self._count, "failed": self._failed}
        await self._send(one_line(end).encode())
        self._client.write(LAST_CHUNK if self._client.has_chunks else b"")
        self._client.done()

    async def _take(self) -> bytes | None:
        """Return the next program; None: there is none. Raises the fault of the body."""
        program = await self._programs.take()
        if isinstance(self._programs, Lines):
            self._under_way_bytes += len(program or b"")
        self._recount()
        return program

    async def _spread(self, first: bytes | None, group: asyncio.TaskGroup) -> None:
        """Begin each program once there is a place for it; the loop has its turn after each."""
        ready = sum(node.state == "ready" for node in self._gateway.book.nodes)
        self._concurrency = self._programs.concurrency or min(_MOST, _AT_A_NODE * max(1, ready))
        places = asyncio.Semaphore(self._concurrency)
        program = first
        while program is not None:
            await places.acquire()
            index, self._count = self._count, self._count + 1
            group.create_task(self._one(index, program, places))
            await asyncio.sleep(0)
            if self._programs.waiting <= self._most_waiting // 2:
                self._go_on()
            try:
                program = await self._take()
            except CellwallError as error:  # in the middle of the lines
                await self._send(self._failure(self._count, error))
                return

    async def _one(self, index: int, program: bytes, places: asyncio.Semaphore) -> None:
        try:
            coming = _Coming(self)
            try:
                execution = await self._execution(program, coming)
                answer = b'{"index":%d,%s' % (index, execution[1:])
            except Exception as error:  # noqa: BLE001 - it belongs to this one program
                answer = self._failure(index, error)
            finally:
                coming.is_over()
            if isinstance(self._programs, Lines):
                self._under_way_bytes -= len(program)
            await self._send_counted(index, answer)
        finally:
            places.release()

    async def _execution(self, program: bytes, coming: _Coming) -> bytes:
        """Return a program's execution; it waits while its reader or each node has no room."""
        await check(program)
        pause_s = _PAUSE_S
        while True:
            await self._has_room.wait()
            turn: Turn | None = None
            try:
                async with self._gateway.place(self._tenant):
                    turn = self._gateway.turns.ask(self._tenant)
                    await turn.come()
                    if not self._has_room.is_set():
                        continue
                    return await errand.run(
                        self._gateway.book,
                        self._said,
                        program,
                        turn,
                        errand.Aid(coming.count, self._lend, self._begin_lead),
                    )
            except CapacityError as error:
                if turn is not None and error.code != CapacityError.code:
                    raise  # a quota of the tenant's, at a node
            finally:
                if turn is not None:
                    turn.leave()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def count_unsent(self, more: int) -> None:
        """Count bytes of answers that the client has not taken. Raises CapacityError."""
        self._unsent_bytes += more
        try:
            self._recount()
        except CapacityError:
            self._unsent_bytes -= more
            self._recount()
            raise

    def _begin_lead(self) -> Lead | None:
        """Begin to lead a program that names what the node that was asked lacks."""
        data = self._gateway.data
        return None if data is None else data.lead(self._caller)

    async def _lend(self, node: Node, offered: str, refusal: bytes, program: bytes) -> None:
        """Give a node the secrets that it asks for, of those that the program names."""
        named = await names_in([program])
        await lend(self._gateway.keeps, node, offered, self._caller, refusal, named)

    def _failure(self, index: int, error: Exception) -> bytes:
        self._failed += 1
        log_failure(error, self._request_id)
        return one_line({"index": index, "error": failure(error, self._request_id)}).encode()

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
        client.write(response_bytes(head, is_kept=is_kept, framing=framing, page=client.page))
        self._gateway.counted(self._head, head.status)
        if self._gateway.trail is not None:
            self._gateway.trail.passed(
                self._caller, client.peer, _WAY, "", head.status, self._request_id
            )

    async def _send_counted(self, index: int, answer: bytes) -> None:
        """Send an answer, which counts until the client has it; it is dropped if it cannot."""
        try:
            self.count_unsent(len(answer))
        except CapacityError:
            await self._send(self._failure(index, _unread()))
            return
        try:
            await self._send(answer)
        finally:
            self.count_unsent(-len(answer))

    async def _send(self, answer: bytes) -> None:
        """Send one answer; return once the client has taken it, but for what a socket holds."""
        async with self._sending:
            await self._has_room.wait()
            line = answer + b"\n"
            self._client.write(chunk(line) if self._client.has_chunks else line)
            await self._has_room.wait()

    async def _say_alive(self) -> None:
        every_s = self._gateway.alive_s
        while every_s:
            await asyncio.sleep(every_s)
            if not self._has_room.is_set():
                continue  # there is something for it to read
            self._client.write(chunk(_ALIVE) if self._client.has_chunks else _ALIVE)


class _Coming:
    """The answer to one program of a batch, of which parts are here."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._size = 0

    def count(self, more: int) -> None:
        """Count a piece. Raises Interrupted: its program has ended, and must not begin again."""
        try:
            self._batch.count_unsent(more)
        except CapacityError:
            self.is_over()  # at once, so that others have the room
            raise _unread() from None
        self._size += more

    def is_over(self) -> None:
        """Count it no longer: it counts as a whole from now on, or has failed."""
        size, self._size = self._size, 0
        self._batch.count_unsent(-size)


def _unread() -> Interrupted:
    return Interrupted(
        "answer: its program has ended, and there is no room to keep it until it is read",
        remedy="read the answers faster, or have fewer programs at once",
    )
