"""Mapping: many programs over a fleet, a bounded number of them at a time.

The invariant: every program that was taken from the source gets exactly one result; a reader that
is slow, or leaves, leaves no programs behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cellwall.fleet.driver.results import Mapped, executed
from cellwall.model.errors import CellwallError, UsageError
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.fleet.driver.ticket import Ticket

Program = str | Mapping[str, Any]
"""A program's code, or the arguments of `arun` with `code` among them."""
Programs = Iterable[Program] | AsyncIterable[Program]


async def mapped(
    programs: Programs,
    options: Mapping[str, Any],
    bound: int,
    submit: Callable[..., Ticket],
    withdraw: Callable[[Ticket], None],
) -> AsyncGenerator[Mapped, None]:
    """Yield a result for each program, in the order in which they end.

    `bound`: number of programs that are under way or whose results are not read yet. `submit`
    takes the arguments of one program, and raises UsageError.
    """
    room = asyncio.Semaphore(bound)
    ended: asyncio.Queue[Mapped | BaseException | None] = asyncio.Queue()
    under_way: set[Ticket] = set()
    tasks = Tasks()

    async def feed() -> None:
        index = -1
        try:
            async for program in _each(programs):
                index += 1
                await room.acquire()
                _begin(index, program)
        except Exception as error:  # the source's own: it belongs to the reader
            ended.put_nowait(error)
        else:
            ended.put_nowait(None)

    def _begin(index: int, program: Program) -> None:
        try:
            ticket = submit(**_arguments(program, options))
        except CellwallError as error:
            ended.put_nowait(Mapped(index, None, error))
            return
        under_way.add(ticket)
        ticket.done.add_done_callback(lambda done: _end(index, ticket, done))

    def _end(index: int, ticket: Ticket, done: asyncio.Future[Any]) -> None:
        under_way.discard(ticket)
        if not done.cancelled():
            ended.put_nowait(_result(index, done))

    tasks.spawn(feed())
    is_fed = False
    try:
        while not is_fed or under_way or not ended.empty():
            each = await ended.get()
            if each is None:
                is_fed = True
            elif isinstance(each, BaseException):
                raise each
            else:
                room.release()
                yield each
    finally:
        await tasks.cancel()
        for ticket in [*under_way]:
            ticket.done.cancel()
            withdraw(ticket)


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
