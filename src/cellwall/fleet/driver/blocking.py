"""Blocking: a fleet for programs without an event loop, such as reward functions.

Each call is handed to a loop on a thread of its own, as in the library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cellwall.fleet.driver.fleet import Fleet
from cellwall.surface.shared.closing import Closing
from cellwall.surface.sync.loop_thread import Ended, LoopThread, at_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.fleet.driver.mapping import Program
    from cellwall.fleet.driver.results import FleetExecution, Mapped, NodeFacts


class _Joined:
    """What the thread holds: the fleet, once it is there."""

    fleet: Fleet

    async def aclose(self) -> None:
        if hasattr(self, "fleet"):
            await self.fleet.aclose()


class BlockingFleet(Closing):
    """A fleet without `await`: `with Fleet.blocking() as fleet`."""

    def __init__(self, address: str | None, options: Mapping[str, Any]) -> None:
        """Called by `Fleet.blocking`; joins the cluster. Raises as `Fleet.connect`."""
        self._thread: LoopThread[_Joined] = LoopThread(_Joined)

        async def join(joined: _Joined, _put: Callable[[Any], None]) -> None:
            joined.fleet = await Fleet.connect(address, **options)

        try:
            self._thread.call(join)
        except BaseException:
            self.close()
            raise
        at_exit(self.close)

    def run(self, code: str, **options: Any) -> FleetExecution:  # noqa: ANN401 - of Fleet.arun
        """Run `code` once in a fresh sandbox; as `Fleet.arun`."""
        return self._thread.call(lambda joined, _put: joined.fleet.arun(code, **options))

    def map(
        self,
        programs: Iterable[Program],
        **options: Any,  # noqa: ANN401 - of Fleet.map
    ) -> Generator[Mapped, None, None]:
        """Run many programs; yield what became of each, as `Fleet.map`.

        `programs` is read in the thread of the fleet.
        """

        async def work(joined: _Joined, put: Callable[[Any], None]) -> None:
            async with contextlib.aclosing(joined.fleet.map(programs, **options)) as results:
                async for each in results:
                    put(each)

        with contextlib.closing(self._thread.iterate(work)) as found:
            for each in found:
                if not isinstance(each, Ended):
                    yield each
                elif each.error is not None:
                    raise each.error

    def nodes(self) -> list[NodeFacts]:
        """Return the nodes, as `Fleet.nodes`."""

        async def work(joined: _Joined, _put: Callable[[Any], None]) -> list[NodeFacts]:
            return joined.fleet.nodes()

        return self._thread.call(work)

    def close(self) -> None:
        """End every node, and leave the cluster. Idempotent."""
        self._thread.close()
