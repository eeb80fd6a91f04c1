"""State of one server: every part that lives as long as it runs.

It lives in memory, one per process; it is built by `apps.serve` and given to every call. It is no
service of its own: it only keeps the parts together and ends them. The invariant: nothing in it
grows without a bound of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cellwall.engine.scheduling import capacity
from cellwall.engine.scheduling.admission import IDLE, NOTHING, Cost, Machine, Overcommit
from cellwall.engine.scheduling.fair_queue import FairQueue
from cellwall.engine.scheduling.host_headroom import HostHeadroom
from cellwall.engine.scheduling.quotas import DEFAULT_TIER, Quotas, Tenants
from cellwall.model.errors import CapacityError
from cellwall.server.audit.writer import Audit
from cellwall.server.auth.keys import Failures, KeyRing
from cellwall.server.auth.stored_keys import StoredKeys
from cellwall.server.auth.tokens import Tokens
from cellwall.server.core.body_budget import BodyBudget, most_bytes
from cellwall.server.core.image_door import ImageDoor
from cellwall.server.core.template_door import TemplateDoor
from cellwall.server.core.times import steady
from cellwall.server.core.volume_door import VolumeDoor
from cellwall.server.executions.disk_quota import Kept
from cellwall.server.executions.idempotency import Replays
from cellwall.server.executions.ledger import Ledger
from cellwall.server.executions.observer import Recording
from cellwall.server.executions.oneshots import Doors, revived
from cellwall.server.executions.registry import Executions
from cellwall.server.executions.sandboxes import Sandboxes
from cellwall.server.executions.webhooks import Notices
from cellwall.server.http.connections import Connections
from cellwall.server.http.vocabulary import words_of
from cellwall.server.observability.observer import Observer
from cellwall.server.observability.redaction import Redactor
from cellwall.server.recovery.recovery import recover
from cellwall.server.secrets.vault import Vault
from cellwall.store import key_file
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.engine.engine import Engine
    from cellwall.server.core.settings import ServerSettings
    from cellwall.store.store import Store

_EXPIRE_EVERY_S = 15.0
_TOKEN_KEY = "tokens.key"  # noqa: S105 - the name of a file
"""Name of the file in the state directory whose key signs tokens, so that they outlive a server
whose sandboxes do; without it every token of before opens nothing."""
_SHARE = 8
"""Divisor: a tenant may have this part of the connections, unless its tier says otherwise."""


class State:
    """All parts of one server; see the module. Make it on the event loop it will live on."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        keys: KeyRing,
        store: Store | None = None,
        redactor: Redactor | None = None,
        disk: Path | None = None,
    ) -> None:
        """Without a store (None) nothing outlives this server, and there is no audit.

        `redactor` is the one that the log uses; `disk` a directory beside the store's file.
        """
        self.engine = engine
        self.settings = settings
        self.keys = keys
        self.store = store
        self.stored_keys = None if store is None else StoredKeys(store, keys)
        self.vault = (
            None if store is None else Vault(store, engine.state_dir, settings.secrets_key_file)
        )
        if self.vault is not None:
            engine.find_secrets = self.vault.find
        self.failures = Failures()
        self.tasks = Tasks()
        self.queue = _queue(engine, settings)
        self.volumes = VolumeDoor(engine, settings)
        self.images = ImageDoor(engine, settings, self.queue.tenants, self.tasks)
        self.templates = TemplateDoor(engine, settings, self.images, self.queue, self.tasks)
        self.connections = Connections(keys, self.queue.tenants)
        self.headroom = HostHeadroom(settings.least_free_mb)
        self.bodies = BodyBudget(most_bytes(settings))
        self.observer = Observer(settings, redactor or Redactor())
        self.observer.redactor.reserve(words_of(settings))
        self.observer.tier_of = self.queue.tenants.tier
        self.audit = None if store is None else Audit(store, settings, self.observer)
        if self.audit is not None:
            engine.on_taken_out = self.audit.runtime_taken_out
            engine.outside.on_record = self.audit.connected
        recording = Recording(self.observer, self.audit)
        self.kept = Kept(
            self.queue.tenants, settings.retention_s, disk, settings.least_free_disk_mb
        )
        self.ledger = Ledger(store, self.tasks, self.kept, recording)
        self.notices = Notices(settings)
        self.observer.on_alert.append(self.notices.flagged)
        self.executions = Executions(
            settings,
            self.tasks,
            self.queue,
            self.ledger,
            partial(revived, engine, settings, self.doors, self.queue.tenants.floor),
            engine.settings.node,
        )
        self.executions.on_ended = self.notices.ended
        self.sandboxes = Sandboxes(settings, store, self.tasks, self.kept)
        self.replays = Replays(store)
        self.tokens = Tokens(_token_key(engine, store), keys.is_accepted, engine.settings.node)
        self.began_at = time.time()
        self.is_stopping = False
        self.requests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    @property
    def doors(self) -> Doors:
        """What decides on the images, volumes and templates that a request names."""
        return Doors(self.images, self.volumes, self.templates)

    async def open(self) -> None:
        """Take over what an earlier server left, and begin to forget what has expired.

        Raises the errors of the store.
        """
        await self.notices.open(self.store)
        if self.engine.settings.snapshots_dir:
            self.engine.copies.open()
        if self.stored_keys is not None:
            await self.stored_keys.refresh()  # recovery asks whether a tenant still has one
        if self.store is not None:
            await recover(self, self.store)
        if self.stored_keys is not None:
            self.tasks.spawn(self.stored_keys.watch())
        self.tasks.spawn(self.connections.watch())
        self._on_timer()

    def _on_timer(self) -> None:
        self.kept.expire()
        self.queue.look_again()
        self.executions.expire()
        self.sandboxes.expire()
        # A slow store gets one such task, not one more with every round.
        if self.store is not None and (self._expiring is None or self._expiring.done()):
            self._expiring = self.tasks.spawn(self._expire_stored(self.store))
        loop = asyncio.get_running_loop()
        pause_s = min(_EXPIRE_EVERY_S, self.settings.retention_s / 2 + 0.1)
        self._timer = loop.call_later(pause_s, self._on_timer)

    async def _expire_stored(self, store: Store) -> None:
        with contextlib.suppress(CapacityError):  # the next round tries again
            await store.expire(steady() - self.settings.retention_s)
            if self.audit is not None:
                await self.audit.trim(steady())

    def check_new(self, check: Callable[[], None]) -> None:
        """Have `check` raise before a one-shot or a sandbox begins; cells go on."""
        self.executions.check_new = self.sandboxes.check_new = check

    async def drain(self, wait_s: float, is_forced: Callable[[], bool] = lambda: False) -> None:
        """Begin nothing new, let executions end for `wait_s` seconds, interrupt the rest."""
        self.is_stopping = True
        await self.executions.drain(wait_s, is_forced)

    async def aclose(self) -> None:
        """End everything that runs; the creator of engine and store closes those."""
        self.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        await self.tasks.cancel()
        await self.notices.aclose()


def _token_key(engine: Engine, store: Store | None) -> bytes:
    """Return the key that signs tokens: kept like what they open, or of this server alone."""
    if store is None:
        return secrets.token_bytes(32)
    return key_file.read(engine.state_dir / _TOKEN_KEY, "signed tokens", may_make=True)


def _tiers(settings: ServerSettings) -> dict[str, Quotas]:
    """Return the tiers, with the defaults that they leave to the server filled in."""
    share = max(1, settings.most_connections // _SHARE)
    tiers = {DEFAULT_TIER: Quotas(), **settings.tiers}
    return {
        name: replace(quotas, connections=quotas.connections or share)
        for name, quotas in tiers.items()
    }


def _queue(engine: Engine, settings: ServerSettings) -> FairQueue:
    """Return the queue over this machine, or over the capacity that the settings give."""
    is_on_disk = engine.settings.allow_process
    machine = capacity.read(engine.state_dir if is_on_disk else None)
    may_promise = Cost(
        settings.capacity_memory_mb or machine.memory_mb,
        settings.capacity_processes or machine.processes,
        settings.capacity_disk_mb or machine.disk_mb,
        machine.cpus,
    )

    def parked() -> Cost:
        pool = engine.pool.statistics()
        count = pool.parked + pool.starting + pool.destroying
        return Cost(count * IDLE.memory_mb, count * IDLE.processes) if count else NOTHING

    tenants = Tenants(_tiers(settings), settings.tenants)
    tenants.history_mb = engine.history_room.taken_mb
    engine.history_room.most_mb_of = tenants.most_history_mb
    tenants.snapshots_mb = engine.copies_room.taken_mb
    engine.copies_room.most_mb_of = tenants.most_snapshots_mb
    return FairQueue(
        settings.most_running,
        settings.most_queued,
        Machine(may_promise, parked, disk=is_on_disk),
        tenants,
        Overcommit(
            settings.overcommit_memory, settings.overcommit_processes, settings.overcommit_disk
        ),
    )
