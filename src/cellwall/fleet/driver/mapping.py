"""Mapping: many programs over a fleet, a bounded number of them at a time.

The invariant: every program that was taken from the source gets exactly one result; a reader that
is slow, or leaves, leaves no programs behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
)
from typing import TYPE_CHECKING, Any

from cellwall.fleet.driver.results import Mapped, executed
from cellwall.model.errors import CellwallError, UsageError
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.fleet.driver.ticket import Ticket

Program = str | Mapping[str, Any]
"""A program's code, or the arguments of `arun` with `code` among them."""
Programs = Iterable[Program] | AsyncIterable[Program]


class Many:
    """One `map`: its source, what is under way, and the results that are not read yet."""

    def __init__(
        self,
        options: Mapping[str, Any],
        bound: int,
        submit: Callable[..., Ticket],
        withdraw: Callable[[Ticket], None],
    ) -> None:
        """`bound`: number of programs that are under way or whose results are not read.

        `submit` takes the arguments of one program, and raises UsageError.
        """
        self._options = options
        self._submit = submit
        self._withdraw = withdraw
        self._room = asyncio.Semaphore(bound)
        self._results: asyncio.Queue[Mapped | None] = asyncio.Queue()
        self._under_way: set[Ticket] = set()
        self._failed: Exception | None = None
        self._is_fed = False

    async def run(self, programs: Programs) -> AsyncGenerator[Mapped, None]:
        """Yield a result for each program, in the order in which they end."""
        tasks = Tasks()
        tasks.spawn(self._feed(programs))
        try:
            while not (self._is_fed and not self._under_way and self._results.empty()):
                each = await self._results.get()
                if each is not None:
                    self._room.release()
                    yield each
            if self._failed is not None:
                raise self._failed
        finally:
            await tasks.cancel()
            for ticket in [*self._under_way]:
                ticket.done.cancel()
                self._withdraw(ticket)

    async def _feed(self, programs: Programs) -> None:
        index = 0
        try:
            async for program in _each(programs):
                await self._room.acquire()
                self._begin(index, program)
                index += 1
        except Exception as error:  # noqa: BLE001 - the source's own: it belongs to the reader
            self._failed = error
        finally:
            self._is_fed = True
            self._results.put_nowait(None)

    def _begin(self, index: int, program: Program) -> None:
        try:
            ticket = self._submit(**_arguments(program, self._options))
        except CellwallError as error:
            self._results.put_nowait(Mapped(index, None, error))
            return
        self._under_way.add(ticket)
        ticket.done.add_done_callback(lambda done: self._end(index, ticket, done))

    def _end(self, index: int, ticket: Ticket, done: asyncio.Future[Any]) -> None:
        self._under_way.discard(ticket)
        if not done.cancelled():
            self._results.put_nowait(_result(index, done))


async def _each(programs: Programs) -> AsyncIterator[Program]:
    if isinstance(programs, AsyncIterable):
        async for program in programs:
            yield program
    else:
        for program in programs:
            yield program


def _arguments(program: Program, options: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(program, str):
        return {**options, "code": program}
    if not isinstance(program, Mapping) or "code" not in program:
        raise UsageError(
            "map: a program is neither text nor arguments with `code`",
            remedy="give strings, or mappings such as {'code': 'print(1)', 'stdin': '…'}",
        )
    return {**options, **program}


def _result(index: int, done: asyncio.Future[Any]) -> Mapped:
    try:
        return Mapped(index, executed(*done.result()), None)
    except CellwallError as error:
        return Mapped(index, None, error)
