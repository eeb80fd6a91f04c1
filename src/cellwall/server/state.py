"""Everything one server holds while it runs.

In memory, one per process; built by `app`, given to every call. Not a service of its own: it only
keeps the parts together and looks after their ends. The invariant: nothing in it grows without a
bound of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from cellwall.engine.tasks import Tasks
from cellwall.server.admission import Admission
from cellwall.server.executions import ExecutionRecord, Executions
from cellwall.server.idempotency import Replays
from cellwall.server.keys import Failures, KeyRing
from cellwall.server.redaction import Redactor
from cellwall.server.room import Room
from cellwall.server.sandboxes import CommandRecord, Sandboxes, SandboxRecord
from cellwall.server.watching import Watch

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.server.settings import ServerSettings

_EXPIRE_EVERY_S = 15.0


class State:
    """See the module. Make it on the event loop it will live on."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        keys: KeyRing,
        redactor: Redactor | None = None,
    ) -> None:
        """Nothing happens yet. `redactor` is the one that the log uses."""
        self.engine = engine
        self.settings = settings
        self.keys = keys
        self.failures = Failures()
        self.tasks = Tasks()
        self.watch = Watch(settings, redactor or Redactor())
        self.admission = Admission(settings.most_running, settings.most_queued)
        self.room = Room(settings.least_free_mb)
        self.executions = Executions(settings, self.tasks, self.watch)
        self.sandboxes = Sandboxes(settings)
        self.replays: Replays[ExecutionRecord | SandboxRecord | CommandRecord] = Replays()
        self.signing_key = secrets.token_bytes(32)
        self.began_at = time.time()
        self.requests = 0
        self.request_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def count(self, seconds: float) -> None:
        """Count one request."""
        self.requests += 1
        self.request_s += seconds

    def open(self) -> None:
        """Begin to forget what has expired."""
        self._on_timer()

    def _on_timer(self) -> None:
        self.executions.expire()
        self.sandboxes.expire()
        loop = asyncio.get_running_loop()
        pause_s = min(_EXPIRE_EVERY_S, self.settings.retention_s / 2 + 0.1)
        self._timer = loop.call_later(pause_s, self._on_timer)

    async def aclose(self) -> None:
        """End everything that runs; the engine is its owner's to close."""
        if self._timer is not None:
            self._timer.cancel()
        await self.tasks.cancel()
