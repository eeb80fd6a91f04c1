"""Programs in the background at gateways with a directory: accepted, handed to nodes, read.

Composed by `apps` over the directory, and asked by `gateway` and `exchange`. The invariant: what
was accepted is begun at most once, and its end is told.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.background.accepting import Accepting
from cellwall.cluster.gateway.background.bounds import Bounds
from cellwall.cluster.gateway.background.handing import Handing
from cellwall.cluster.gateway.background.reading import Reading
from cellwall.cluster.gateway.data.visit import Visit
from cellwall.cluster.gateway.routing import Way
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from typing import Any

    from cellwall.cluster.directory.programs import Programs
    from cellwall.cluster.gateway.background.accepting import Kept
    from cellwall.cluster.gateway.background.hooks import Hooks
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.visit import Work
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead
    from cellwall.engine.scheduling.quotas import Tenants
    from cellwall.server.core.settings import ServerSettings

_PATH = re.compile(r"/executions/([^/]+)(/events)?")
_SWEEP_S = 5.0
_log = logging.getLogger("cellwall.gateway")


class Background:
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        programs: Programs,
        hooks: Hooks,
        tenants: Tenants,
        settings: ServerSettings,
        ended: Programs,
    ) -> None:
        """`settings`: those that say how long results are kept, and how much may wait.

        `ended`: the programs by a connection on which no request waits.
        """
        self.hooks = hooks
        self._gateway = gateway
        self._ended = ended
        self._kept_s = settings.retention_s
        bounds = Bounds(programs, tenants, settings.most_queued)
        self._accepting = Accepting(gateway, programs, hooks, bounds)
        self._handing = Handing(gateway, programs, settings.tenants)
        self._reading = Reading(gateway, programs)

    def works(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return what has to be under way."""
        return self._handing.run(), self.hooks.run(), self._sweep()

    async def accept(
        self, head: RequestHead, caller: Caller, request_id: str, body: bytes
    ) -> Kept | None:
        """Keep a program for the background; None: it is none. Raises as `Accepting.accept`."""
        kept = await self._accepting.accept(head, caller, request_id, body)
        if kept is not None and not kept.is_replay:
            self._handing.look()
        return kept

    @staticmethod
    def headers_of(kept: Kept) -> Mapping[str, str]:
        """Return the headers of the answer to its request."""
        program_id = str(kept.value["execution_id"])
        replay = {"idempotent-replay": "true"} if kept.is_replay else {}
        return {"location": f"/executions/{program_id}", "x-execution-id": program_id, **replay}

    def begin(self, client: ClientLink, head: RequestHead, way: Way, caller: Caller) -> Visit:
        """Begin to answer a request about one."""
        visit = Visit(self._gateway, client, head, way, caller)
        return visit.begin(self._work(client, head) or _anywhere)

    def _work(self, client: ClientLink, head: RequestHead) -> Work | None:
        found = _PATH.fullmatch(head.path)
        if found is None:
            return None
        program_id, is_of_events = found[1], found[2] is not None
        method = head.method.decode("latin-1")
        if method in {"GET", "HEAD"} and is_of_events:
            return partial(self._reading.events, program_id=program_id, client=client)
        if method in {"GET", "HEAD"}:
            return partial(self._reading.get, program_id=program_id)
        if method == "DELETE" and not is_of_events:
            return partial(self._reading.cancel, program_id=program_id)
        return None

    async def _sweep(self) -> None:
        """Remove for ever what is kept no longer."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                while await self._ended.sweep(self._kept_s):
                    pass
            except StoreBusy:
                continue  # the directory is away; there is time
            except Exception:  # noqa: BLE001 - the next may do better, and the operator hears of it
                _log.exception("background: what is kept no longer is not all removed")


async def _anywhere(visit: Visit) -> None:
    """Have any node say what it says to a request."""
    await visit.go(Way("any"))
