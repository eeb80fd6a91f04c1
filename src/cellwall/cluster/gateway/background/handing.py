"""Handing programs to nodes as these have room, and seeing to each until its end is written.

A gateway takes some programs of each tenant in hand (`directory.programs`), gives them their turns
as it does a client's, and follows what has begun by asking its node. A gateway that dies leaves its
programs to the others, which ask the node before they begin anything. The invariants: a node is
asked to begin only by a try that the directory has, soon after that was written; what is not known
is asked until it is; a program's end is written once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.background.aside import Aside
from cellwall.cluster.gateway.background.program import Program
from cellwall.engine.scheduling.admission import UNBOUNDED
from cellwall.model.errors import CapacityError, CellwallError
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.cluster.directory.programs import Programs, Taken
    from cellwall.cluster.gateway.gateway import Gateway

_LOOK_S = 0.2
_KEEP_S = 2.0
_MOST = 256
"""Waiting programs of one tenant that one gateway has in hand."""
_AGAIN_S, _MOST_AGAIN_S = 0.1, 2.0
_log = logging.getLogger("cellwall.gateway")


class Handing:
    """See the module."""

    def __init__(self, gateway: Gateway, programs: Programs, tiers: Mapping[str, str]) -> None:
        """`tiers`: the tier of each tenant that has one."""
        self._gateway = gateway
        self._programs = programs
        self._tiers = tiers
        self._aside = Aside(gateway.turns)
        self._under_way: set[str] = set()
        """Ids of the programs that this gateway sees to."""
        self._news = asyncio.Event()

    def look(self) -> None:
        """Look for programs now: there is a new one."""
        self._news.set()

    async def run(self) -> None:
        """Take programs in hand for ever."""
        loop = asyncio.get_running_loop()
        kept_s = -_KEEP_S
        while True:
            try:
                if loop.time() - kept_s >= _KEEP_S:
                    await self._programs.keep_hand()
                    kept_s = loop.time()
                await self._take()
            except CellwallError as error:
                _log.debug("background: %s", error)
            self._news.clear()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _take(self) -> None:
        places = self._gateway.turns.places
        most = _MOST if places >= UNBOUNDED else min(_MOST, 2 * places)
        for taken in await self._programs.take(most, list(self._under_way)):
            self._under_way.add(taken.id)
            self._gateway.tasks.spawn(self._see_to(taken))

    async def _see_to(self, taken: Taken) -> None:
        """See to a program until its end is written, or another gateway has it in hand."""
        pause_s = _AGAIN_S
        found: Taken | None = taken
        try:
            while found is not None:
                program = Program(self._gateway, self._programs, self._aside, found, self._tiers)
                if await self._went_on(program):
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_AGAIN_S)
                found = await self._read(taken)
        finally:
            self._under_way.discard(taken.id)

    async def _went_on(self, program: Program) -> bool:
        """Report whether a program has its end; False: look again how far it is."""
        try:
            return await program.go()
        except (StoreBusy, CapacityError):
            return False
        except CellwallError as error:
            _log.warning("background %s: %s", program.taken.id, error)
        except Exception:  # noqa: BLE001 - a defect must not keep others from it
            _log.exception("background %s: it is tried again", program.taken.id)
        return False

    async def _read(self, taken: Taken) -> Taken | None:
        while True:
            try:
                return await self._programs.read(taken.tenant, taken.id)
            except CellwallError:  # the directory is away
                await asyncio.sleep(_LOOK_S)
