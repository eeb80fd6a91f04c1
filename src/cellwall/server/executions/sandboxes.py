"""The sandboxes this server keeps for its owners, their commands and their logs.

A record is not the sandbox itself (`engine.sandbox`) and outlives it for a while, also on disk, so
that its owner can learn why it ended. The invariant: one record per sandbox, one owner for its
whole life.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from sys import getsizeof
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CapacityError, Conflict, SandboxUnavailable
from cellwall.model.ids import new_id
from cellwall.model.network import NO_NETWORK
from cellwall.server.core.times import rfc3339, steady
from cellwall.server.executions.ended_commands import EndedCommands
from cellwall.server.executions.job import Job
from cellwall.server.observability.logs import escaped
from cellwall.store.records.changes import EndSandbox, PutSandbox
from cellwall.store.records.rows import SandboxRow

if TYPE_CHECKING:
    from cellwall.engine.parts.commands import Command
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.model.execution import CommandResult
    from cellwall.model.snapshot import Keep
    from cellwall.server.commands.terminal_seat import Seat
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.executions.disk_quota import Kept
    from cellwall.server.schemas.requests import Window
    from cellwall.store.records.changes import Change
    from cellwall.store.store import Store
    from cellwall.surface.shared.tasks import Tasks

_RESTART = "its server ended"
_LOG_RECORDS = 1000


class CommandRecord(Job):
    """One command in a sandbox."""

    def __init__(
        self, owner: str, request_id: str, spool_bytes: int, argv: list[str], node: str = ""
    ) -> None:
        """`node` is the one that the id of its sandbox begins with."""
        super().__init__(new_id(node), owner, request_id, spool_bytes)
        self.argv = argv
        self.terminal: Window | None = None
        """Size of the terminal the command runs on; None without a terminal."""
        self.command: Command | None = None
        """Handle of the command while it runs."""
        self.pid: int | None = None
        self.result: CommandResult | None = None
        self.is_kept = False
        """Whether it goes on in the next server."""
        self.is_left = False
        """Whether this server has ended before it, and it goes on in the next one."""
        self.detach_s = 0.0
        """Seconds that its terminal waits without a client before it is hung up."""
        self.seat: Seat | None = None
        """The place of its terminal's client, while it runs."""
        self.begins_after = 0
        """Number that its events follow: an earlier server has numbered those before."""

    @property
    def cost_bytes(self) -> int:
        """Approximate memory of the record in bytes; a character of text takes up to four."""
        cost = 2048 + self.spool.kept_bytes + sum(map(getsizeof, self.argv))
        if self.result is not None:
            cost += getsizeof(self.result.stdout) + getsizeof(self.result.stderr)
        return cost

    def settle(self) -> None:
        """Complete the record as `Job.settle` does, and let go of the handle."""
        if self.command is not None:
            self.pid, self.command = self.command.pid, None
        self.seat = None
        super().settle()

    def leave(self) -> None:
        """Let go of a command that goes on in the next server: readers get no end of it here."""
        if self.command is not None:
            self.pid, self.command = self.command.pid, None
        self.is_left = True
        self.spool.leave()
        self.attempt = self.task = self.spool.on_pressure = None
        for future in (self.started, self.ended):
            if not future.done():
                future.set_result(None)

    def as_json(self) -> dict[str, Any]:
        """Return the object of the command routes."""
        result = self.result
        ended = None if result is None else result.outcome.as_json()
        value: dict[str, Any] = {
            "id": self.id,
            "argv": self.argv,
            "status": "ended" if self.ended.done() and not self.is_left else "running",
            "pid": self.pid if self.command is None else self.command.pid,
            "started_at": None if self.started_at is None else rfc3339(self.started_at),
            "terminal": None if self.terminal is None else self.terminal.model_dump(),
            "kept": self.is_kept,
            "verdict": None if ended is None else ended["verdict"],
            "exit_code": None if ended is None else ended["exit_code"],
            "signal": None if ended is None else ended["signal"],
            "exit_status": None if ended is None else ended["exit_status"],
            "outcome": ended,
            "stdout": None if result is None else result.stdout,
            "stderr": None if result is None else result.stderr,
            "last_event": self.spool.last,
        }
        if self.failure is not None:
            value.update(verdict="sandbox_error", failure=self.failure)
        return value


class SandboxRecord:
    """One sandbox, of this server or of an earlier one; an earlier server's sandbox has ended."""

    def __init__(
        self,
        owner: str,
        sandbox: AsyncSandbox | None,
        shown: Mapping[str, Any],
        times: tuple[float, float | None] = (0.0, None),
    ) -> None:
        """`shown` has the sandbox's constant fields, and its name, language and metadata.

        `times` are begin and end of an earlier server's sandbox, in seconds since the epoch.
        """
        self.owner = owner
        self.id: str = shown["id"] if sandbox is None else sandbox.id
        self.name: str | None = shown.get("name")
        self.language: str = shown["language"]
        self.metadata: dict[str, str] = dict(shown.get("metadata", {}))
        self.clipped: Mapping[str, float] = shown["clipped"]
        self.commands: dict[str, CommandRecord] = {}
        self.executions = 0
        self.started = 0
        self.ended_because: str | None = shown.get("ended_because")
        self.on_ended: Callable[[SandboxRecord], None] = lambda _: None
        self._sandbox = sandbox
        self._log: deque[dict[str, Any]] = deque(maxlen=_LOG_RECORDS)
        self._logged = 0
        self._shown = dict(shown)
        self.created_at, self.ended_at = (sandbox.created_at, None) if sandbox else times
        self.created = rfc3339(self.created_at)
        """When it was created, as lists show and order it."""
        if sandbox is None:
            return
        self._shown = {**_fixed(sandbox), **shown}
        self.log("created", template=self.template)
        sandbox.on_ended(self._on_ended)

    @classmethod
    def resumed(cls, row: SandboxRow, sandbox: AsyncSandbox) -> SandboxRecord:
        """Return the record of a sandbox that an earlier server had, and which lives on."""
        record = cls(row.tenant, sandbox, {**row.shown, "id": row.id})
        record.log("taken_over", lost=sandbox.lost)
        return record

    @classmethod
    def restored(cls, row: SandboxRow) -> SandboxRecord:
        """Return the record of a sandbox that an earlier server had, and which has ended."""
        from cellwall.store.records.recovery import (
            SANDBOX_BECAUSE,  # imports SQL, which takes a second
        )

        because = row.ended_because or ""
        because = _RESTART if because == SANDBOX_BECAUSE else because
        shown = {**row.shown, "id": row.id, "ended_because": because}
        return cls(row.tenant, None, shown, (row.created_at, row.ended_at))

    def row(self) -> SandboxRow:
        """Return the row that the store keeps of the sandbox."""
        changing = {"name": self.name, "metadata": self.metadata, "clipped": dict(self.clipped)}
        return SandboxRow(
            self.id, self.owner, {**self._shown, "language": self.language, **changing},
            self.created_at,
        )  # fmt: skip

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox itself; raises `SandboxUnavailable` when it has ended."""
        if self._sandbox is None:
            raise SandboxUnavailable(
                f"sandbox {self.id}: it has ended: {self.ended_because}",
                remedy="create a new sandbox",
            )
        return self._sandbox

    @property
    def template(self) -> str:
        """Name of the sandbox's template, also after its end."""
        return str(self._shown["template"])

    @property
    def isolation(self) -> Mapping[str, Any]:
        """Isolation the sandbox runs or ran with, as `Isolation.as_json`."""
        found: Mapping[str, Any] = self._shown["isolation"]
        return found

    @property
    def _ends_at(self) -> float:
        if self._sandbox is None:
            return self.ended_at or self.created_at
        return self._sandbox.ends_at

    def tell_ended(self, callback: Callable[[str], None]) -> None:
        """Call `callback` once with the reason when the sandbox ends; at once if it has ended."""
        if self._sandbox is None:
            callback(self.ended_because or "")
        else:
            self._sandbox.on_ended(callback)

    @property
    def status(self) -> str:
        """One of `running`, `paused`, `hibernated` and `stopped`."""
        return "stopped" if self._sandbox is None else self._sandbox.status

    @property
    def is_resumed_by_requests(self) -> bool:
        """Whether a request to it resumes it while it is paused."""
        return bool(self._shown.get("resume", "auto") == "auto")

    @property
    def keeps(self) -> Keep | None:
        """What it keeps while it is hibernated; None: it is not."""
        return None if self._sandbox is None else self._sandbox.hibernation.keeps

    @property
    def _is_stored(self) -> bool:
        return self._sandbox is not None and self._sandbox.hibernation.is_stored

    @property
    def is_unstored(self) -> bool:
        """Whether it lives, and would end with this server."""
        return self._sandbox is not None and not self._sandbox.hibernation.is_stored

    async def close(self, because: str = "it was closed") -> None:
        """End the sandbox; idempotent."""
        if self._sandbox is not None:
            await self._sandbox.close(because)

    def _on_ended(self, reason: str) -> None:
        self.ended_at = steady()
        self.ended_because = escaped(reason)
        # frees its channel, contexts and kernel facts; the record outlives them
        self._sandbox = None
        self.log("ended", reason=reason)
        self.on_ended(self)

    def log(self, event: str, **fields: object) -> None:
        """Add one record to the sandbox's log; text from inside the sandbox is escaped here."""
        self._logged += 1
        clean = {k: escaped(v) if isinstance(v, str) else v for k, v in fields.items()}
        self._log.append(
            {"seq": self._logged, "time": rfc3339(time.time()), "event": event, **clean}
        )

    def logs(self, after: int, limit: int) -> tuple[list[dict[str, Any]], int | None]:
        """Return records after number `after`, and where to continue if there are more."""
        found = [record for record in self._log if record["seq"] > after]
        part = found[:limit]
        return part, part[-1]["seq"] if len(found) > limit else None

    def add_command(self, record: CommandRecord) -> None:
        """Register a command."""
        self.commands[record.id] = record
        self.started += 1

    def _sleep(self) -> dict[str, Any]:
        found = self._sandbox
        return {
            "stays_because": None if found is None else found.stays_because or None,
            "hibernated_bytes": None if found is None else found.hibernation.image_bytes or None,
            "hibernated_keeps": self.keeps,
            "hibernated_durable": None if self.keeps is None else self._is_stored,
        }

    def _network(self) -> dict[str, Any]:
        policy = NO_NETWORK if self._sandbox is None else self._sandbox.network
        return policy.as_json()

    def as_json(self) -> dict[str, Any]:
        """Return the object of the sandbox routes."""
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "language": self.language,
            "template": self._shown["template"],
            "created_at": self.created,
            "expires_at": rfc3339(self._ends_at),
            "isolation": self._shown["isolation"],
            "trust": self._shown.get("trust"),
            "image": self._shown.get("image"),
            "user": self._shown.get("user"),
            "volumes": self._shown.get("volumes"),
            "limits": self._shown["limits"],
            "clipped": dict(self.clipped),
            "metadata": self.metadata,
            "network": self._network(),
            "auto_pause_s": self._shown.get("auto_pause_s"),
            "hibernate_s": self._shown.get("hibernate_s"),
            "resume": "auto" if self.is_resumed_by_requests else "manual",
            **self._sleep(),
            "ended_because": self.ended_because,
        }


def _fixed(sandbox: AsyncSandbox) -> dict[str, Any]:
    """Return the fields of a sandbox that are constant for its whole life."""
    root = sandbox.live.spec.image
    return {
        "user": None if root is None else root.user,
        "template": sandbox.template,
        "isolation": sandbox.isolation.as_json(),
        "trust": sandbox.live.trust,
        "limits": asdict(sandbox.limits),
    }


class Sandboxes:
    """All sandbox records, by id, oldest first."""

    def __init__(
        self, settings: ServerSettings, store: Store | None, tasks: Tasks, kept: Kept
    ) -> None:
        """Without a store, the next server knows none of these sandboxes."""
        self._kept = kept
        self._settings = settings
        self._store = store
        self._tasks = tasks
        self._all: dict[str, SandboxRecord] = {}
        self._starting = 0
        self._offered: set[str] = set()
        """Ids that were offered for sandboxes that are about to be created."""
        self.ended_commands = EndedCommands(settings.retained_bytes)
        self.check_new: Callable[[], None] = lambda: None
        """Raises if no sandbox may begin now."""

    @property
    def all(self) -> Mapping[str, SandboxRecord]:
        """Every record, for `ownership.owned`."""
        return self._all

    @property
    def live(self) -> int:
        """Number of sandboxes that have not ended."""
        return sum(record.ended_at is None for record in self._all.values())

    @property
    def unstored(self) -> int:
        """Number of sandboxes that live, or are about to, and would end with this server."""
        return self._starting + sum(record.is_unstored for record in self._all.values())

    def has(self, sandbox_id: str) -> bool:
        """Report whether there is a sandbox of that id, of any owner, or one is being created."""
        return sandbox_id in self._all or sandbox_id in self._offered

    def begin(self, offered_id: str = "") -> None:
        """Reserve room for a sandbox about to be created, and the id that was offered for it.

        Raises `CapacityError` when there is none, `Conflict` if a sandbox has that id.
        """
        self.check_new()
        if offered_id and (offered_id in self._all or offered_id in self._offered):
            raise Conflict(
                f"sandbox {offered_id}: there is one of this id",
                remedy="ask for that one, or offer a fresh id",
            )
        if self.live + self._starting >= self._settings.most_sandboxes:
            raise CapacityError(
                "sandboxes: there are as many as this server may have",
                retry_after_s=5,
                remedy="delete one, or wait until one's life is over",
            )
        self._starting += 1
        if offered_id:
            self._offered.add(offered_id)

    def begun(self, record: SandboxRecord | None, offered_id: str = "") -> None:
        """Release the reservation; `record` is the created sandbox, None if creation failed."""
        self._starting -= 1
        self._offered.discard(offered_id)
        if record is not None:
            self._all[record.id] = record

    async def keep(self, record: SandboxRecord, *others: Change) -> None:
        """Write a created or changed sandbox to the store, and `others` in the same transaction.

        Raises `CapacityError` or another `CellwallError` if it cannot be written.
        """
        if self._store is not None:
            record.on_ended = self._on_ended
            await self._store.write(PutSandbox(record.row()), *others)
            if record.ended_at is not None:
                self._on_ended(record)

    def _on_ended(self, record: SandboxRecord) -> None:
        self._tasks.spawn(self._write_end(record))

    async def _write_end(self, record: SandboxRecord) -> None:
        because = record.ended_because or ""
        if self._store is not None:
            named = sum(len(name) + len(value) for name, value in record.metadata.items())
            self._kept.keep(record.owner, named, record.ended_at or steady())
        with contextlib.suppress(CapacityError):  # the next server's recovery ends it
            if self._store is not None:
                await self._store.write(EndSandbox(record.id, record.ended_at or 0.0, because))

    def restore(self, rows: list[SandboxRow], living: Mapping[str, AsyncSandbox]) -> None:
        """Add the records of sandboxes of an earlier server, by id those that live on."""
        for row in rows:
            sandbox = living.get(row.id)
            if sandbox is None or row.ended_at is not None:
                self._all[row.id] = SandboxRecord.restored(row)
                continue
            record = self._all[row.id] = SandboxRecord.resumed(row, sandbox)
            record.on_ended = self._on_ended
            if record.ended_at is not None:  # it has ended since
                self._on_ended(record)

    def expire(self) -> None:
        """Forget sandboxes and commands whose retention is over; called periodically."""
        limit = steady() - self._settings.retention_s
        for record in list(self._all.values()):
            if record.ended_at is not None and record.ended_at <= limit:
                del self._all[record.id]
                for command in list(record.commands.values()):
                    self.ended_commands.forget(command)
        self.ended_commands.expire(limit)
