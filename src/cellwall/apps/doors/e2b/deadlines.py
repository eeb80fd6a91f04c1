"""Deadlines of sandboxes that their clients want paused, not ended, when the timeout is over.

Such a sandbox has the longest life that the operator permits. Its facts name the time of its pause,
and whether it was paused at that time: the next server finds them, and does not pause again what
its owner has resumed. The invariant: the pause is the server's own doing and asks for nothing that
its tenant could not have done; one that fails is tried again until the life ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.facts import Facts, is_met, met, pause_at, pauses_files, state_of
from cellwall.model.errors import CellwallError, SandboxUnavailable
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.server.executions.sandboxes import SandboxRecord
    from cellwall.server.state import State

AGAIN_S = 300
"""Seconds until the next pause of a sandbox that a request has resumed."""
_LOOK_EVERY_S = 0.5
_AFTER_FAILURE_S = 5.0
"""Seconds until a pause that has failed is tried again, and a failure logged."""
_BECAUSE = "its timeout is over"
_log = logging.getLogger("cellwall.server")


class Deadlines:
    """Pauses sandboxes at their time; see the module. Made on the server's event loop."""

    def __init__(self, state: State) -> None:
        self._sandboxes = state.sandboxes
        self._tasks = Tasks()
        self._pausing: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)
        now = time.time()
        for record in self._sandboxes.all.values():
            at = pause_at(record.metadata, record.created_at)
            if at is None or at > now or record.status != "running":
                continue
            if record.id not in self._pausing and not is_met(record.metadata):
                self._pausing.add(record.id)
                self._tasks.spawn(self._pause(record))

    async def _pause(self, record: SandboxRecord) -> None:
        deadline = record.metadata
        try:
            if pauses_files(record.metadata):
                left = ", ".join(await record.sandbox.hibernate(keep="files"))
                record.log("hibernated", because=_BECAUSE, left_behind=left, keep="files")
            else:
                await record.sandbox.pause()
                record.log("paused", because=_BECAUSE)
            if record.metadata == deadline:  # else it has got another one meanwhile
                record.metadata = met(deadline)
                await self._sandboxes.keep(record)
        except SandboxUnavailable:
            pass
        except CellwallError as error:
            if is_met(record.metadata):
                _log.warning("e2b: sandbox %s: its pause is not kept: %s", record.id, error)
                return
            _log.warning("e2b: sandbox %s is not paused at its timeout: %s", record.id, error)
            await asyncio.sleep(_AFTER_FAILURE_S)
        finally:
            self._pausing.discard(record.id)

    async def aclose(self) -> None:
        """Pause nothing any more; idempotent."""
        self._timer.cancel()
        await self._tasks.cancel()


def ends_at(sandbox: AsyncSandbox) -> float:
    """Return when a sandbox ends, or is paused, in seconds since the epoch."""
    at = Facts.of(sandbox).pause_at
    return sandbox.ends_at if at is None else min(at, sandbox.ends_at)


async def prolong(sandbox: AsyncSandbox, life_s: float, most_s: float) -> None:
    """Let a sandbox live, or be paused only after, `life_s` seconds from now.

    `most_s`: the operator's ceiling of a life.
    """
    facts = Facts.of(sandbox)
    if facts.pause_at is None:
        await sandbox.extend(life_s)
        return
    later = replace(facts, pause_at=time.time() + life_s)
    await sandbox.change(life_s=most_s, metadata=later.kept())


async def wake(sandbox: AsyncSandbox, most_s: float) -> None:
    """Prepare a paused sandbox for the request that is about to resume it."""
    if state_of(sandbox.status) == "paused" and Facts.of(sandbox).pause_at is not None:
        await prolong(sandbox, min(AGAIN_S, most_s), most_s)
