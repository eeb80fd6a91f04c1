"""Actor: a node of a fleet as Ray calls it; an engine, its desk and its fence in one process.

Ray makes it on a machine of the cluster, by its name in this module; nothing here imports Ray. Each
method takes JSON and returns JSON. The invariant: no exception leaves it, because Ray would pickle
it; a node that has ended or was fenced answers so and takes nothing, for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cellwall.fleet.wire.failures import failure
from cellwall.fleet.wire.items import Json, encoded
from cellwall.fleet.wire.letters import letter_of, reply

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.fleet.node.desk import Desk
    from cellwall.fleet.node.fence import Fence
    from cellwall.fleet.node.ledger import Ledger

_log = logging.getLogger("cellwall")
_EXIT_S = 0.5
"""Seconds for the last answer to leave."""
_CLOSE_S = 1.0
"""Seconds that a fenced engine may take to end its sandboxes by itself; then the guard does."""


class NodeActor:
    """One node."""

    def __init__(self) -> None:
        """Touch nothing yet: `open` says what is wrong, a constructor could only fail."""
        self._engine: Engine | None = None
        self._desk: Desk | None = None
        self._fence: Fence | None = None
        self._ledger: Ledger | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self, message: bytes) -> bytes:
        """Start the engine, and have its templates ready; return facts of the node."""
        try:
            return encoded(await self._open(letter_of(message)))
        except Exception as error:  # noqa: BLE001 - it crosses as JSON
            _log.exception("fleet: the node did not open")
            return encoded({"failure": failure(error)})

    async def _open(self, wishes: Json) -> Json:
        from cellwall.engine.engine import Engine
        from cellwall.fleet.node import ledger
        from cellwall.fleet.node.desk import Desk
        from cellwall.fleet.node.fence import Fence
        from cellwall.fleet.node.lease import Lease
        from cellwall.fleet.node.work import Work
        from cellwall.model.errors import HostUnsupported
        from cellwall.surface.shared.tasks import Tasks

        if wishes["version"] != version("cellwall"):
            raise HostUnsupported(
                "version",
                f"this node has cellwall {version('cellwall')}, the driver {wishes['version']}",
                remedy=f"run on this node: pip install 'cellwall[ray]=={wishes['version']}'",
            )
        if wishes["needs_token"] and os.environ.get("RAY_AUTH_MODE") != "token":
            raise HostUnsupported(
                "token",
                "Ray on this machine runs code of any process that reaches it",
                remedy="start it with RAY_AUTH_MODE=token and the cluster's token",
            )
        cpus = len(os.sched_getaffinity(0))
        self._engine = engine = Engine()
        await engine.runtime()
        for template in wishes["templates"]:
            # Also brings everything here that a first program needs, before the lease begins.
            await engine.run("", template=template)
        self._fence = fence = Fence(Lease(wishes["fence_s"]))
        await fence.set_up()
        self._ledger = ledger.Ledger(ledger.place(engine.state_dir, wishes["name"]))
        at_once = wishes["at_once"] or 2 * cpus
        work = Work(engine, self._ledger)
        self._desk = Desk(work.do, at_once, lambda: fence.has_ended)
        self._watch = Tasks().spawn(fence.watch(self._fenced))
        return {
            "pid": os.getpid(),
            "cpus": cpus,
            "at_once": at_once,
            "ledger": str(ledger.place(engine.state_dir, wishes["name"])),
        }

    async def ping(self, message: bytes) -> bytes:
        """Answer a ping, and renew the lease. Runs on a thread of its own, beside the engine's."""
        if self._fence is None or self._desk is None:
            return encoded({"over": True})
        if self._fence.has_ended or self._fence.is_stuck:
            return encoded({"over": True})
        told = letter_of(message)
        self._fence.renew(told["number"], told["heard"])
        facts: dict[str, Any] = {"running": self._desk.running, "waiting": self._desk.waiting}
        return encoded(facts)

    async def exchange(self, message: bytes) -> bytes:
        """Take items, and reply with results; see `letters`."""
        letter = letter_of(message)
        if self._desk is None or self._fence is None or self._fence.has_ended:
            return reply((), [item["id"] for item in letter["items"]], ())
        try:
            return await self._desk.exchange(letter)
        except Exception:  # noqa: BLE001 - no object may cross
            _log.exception("fleet: a letter failed")
            os._exit(1)  # what it began is unknown: the driver hears of the end instead

    async def close(self, message: bytes) -> bytes:
        """End every sandbox; return once none is left. The process ends afterwards if asked to."""
        if self._watch is not None:
            self._watch.cancel()
        await self._end()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        if self._fence is not None:
            await asyncio.to_thread(self._fence.lower)
        if letter_of(message)["exit"]:
            asyncio.get_running_loop().call_later(_EXIT_S, os._exit, 0)
        return encoded({})

    async def _end(self) -> None:
        if self._desk is not None:
            self._desk.close()
        if self._engine is not None:
            await self._engine.aclose()
        if self._desk is not None:
            await self._desk.stop()

    async def _fenced(self) -> None:
        _log.error("fleet: no driver was heard while the lease lasted; this node ends")
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._end()
        finally:
            os._exit(1)
