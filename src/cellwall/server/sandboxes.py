"""The sandboxes this server keeps for its owners, their commands and their logs.

Not the sandbox itself (`engine.sandbox`): a record outlives it for a while, so that its owner can
learn why it ended. The invariant: one record per sandbox, one owner for its whole life.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CapacityError
from cellwall.model.ids import new_id
from cellwall.server.logs import escaped
from cellwall.server.times import rfc3339
from cellwall.server.tracked import Tracked

if TYPE_CHECKING:
    from cellwall.engine.commands import Command
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.model.execution import CommandResult
    from cellwall.server.schemas import Window
    from cellwall.server.settings import ServerSettings

_LOG_RECORDS = 1000
_ENDED_COMMANDS = 256


class CommandRecord(Tracked):
    """One command."""

    def __init__(self, owner: str, request_id: str, spool_bytes: int, argv: list[str]) -> None:
        """It has not been started."""
        super().__init__(new_id(), owner, request_id, spool_bytes)
        self.argv = argv
        self.terminal: Window | None = None
        """The size of the terminal it runs on, if it does."""
        self.command: Command | None = None
        self.result: CommandResult | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the object of the command routes."""
        result = self.result
        ended = None if result is None else result.outcome.as_json()
        value: dict[str, Any] = {
            "id": self.id,
            "argv": self.argv,
            "status": "ended" if self.ended.done() else "running",
            "pid": None if self.command is None else self.command.pid,
            "started_at": None if self.started_at is None else rfc3339(self.started_at),
            "terminal": None if self.terminal is None else self.terminal.model_dump(),
            "verdict": None if ended is None else ended["verdict"],
            "exit_code": None if ended is None else ended["exit_code"],
            "signal": None if ended is None else ended["signal"],
            "outcome": ended,
            "stdout": None if result is None else result.stdout,
            "stderr": None if result is None else result.stderr,
        }
        if self.failure is not None:
            value.update(verdict="sandbox_error", failure=self.failure)
        return value


class SandboxRecord:
    """One sandbox."""

    def __init__(
        self,
        owner: str,
        sandbox: AsyncSandbox,
        facts: Mapping[str, Any],
        clipped: Mapping[str, float],
    ) -> None:
        """`facts` are its name, language and metadata."""
        self.owner = owner
        self.id = sandbox.id
        self.sandbox = sandbox
        self.name: str | None = facts.get("name")
        self.language: str = facts["language"]
        self.metadata: dict[str, str] = dict(facts.get("metadata", {}))
        self.clipped = clipped
        self.commands: dict[str, CommandRecord] = {}
        self.executions = 0
        self.started = 0
        self.ended_at: float | None = None
        self.ended_s: float | None = None
        """Monotonic: how long it is remembered follows no clock that can be set."""
        self.ended_because: str | None = None
        self._expires_at = sandbox.ends_at
        self._log: deque[dict[str, Any]] = deque(maxlen=_LOG_RECORDS)
        self._logged = 0
        self.log("created", template=sandbox.template)
        sandbox.on_ended(self._on_ended)

    def _on_ended(self, reason: str) -> None:
        self.ended_at, self.ended_s = time.time(), time.monotonic()
        self._expires_at = self.ended_at
        self.ended_because = escaped(reason)
        self.log("ended", reason=reason)

    def extend(self) -> None:
        """Its life was changed."""
        self._expires_at = self.sandbox.ends_at

    def log(self, event: str, **fields: object) -> None:
        """Add one record to its log; text of the inside is made harmless here."""
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
        """Know a command; the oldest that ended is forgotten above 256."""
        ended = [each.id for each in self.commands.values() if each.ended.done()]
        for command_id in ended[: max(0, len(ended) - _ENDED_COMMANDS)]:
            del self.commands[command_id]
        self.commands[record.id] = record
        self.started += 1

    def as_json(self) -> dict[str, Any]:
        """Return the object of the sandbox routes."""
        from dataclasses import asdict

        sandbox = self.sandbox
        return {
            "id": self.id,
            "name": self.name,
            "status": sandbox.status,
            "language": self.language,
            "template": sandbox.template,
            "created_at": rfc3339(sandbox.created_at),
            "expires_at": rfc3339(self._expires_at),
            "isolation": sandbox.isolation.as_json(),
            "limits": asdict(sandbox.limits),
            "clipped": dict(self.clipped),
            "metadata": self.metadata,
            "ended_because": self.ended_because,
        }


class Sandboxes:
    """All of them, by id, oldest first."""

    def __init__(self, settings: ServerSettings) -> None:
        """None yet."""
        self._settings = settings
        self._all: dict[str, SandboxRecord] = {}
        self._starting = 0

    @property
    def all(self) -> Mapping[str, SandboxRecord]:
        """Every record, for `ownership.owned`."""
        return self._all

    @property
    def live(self) -> int:
        """How many have not ended."""
        return sum(record.ended_at is None for record in self._all.values())

    def begin(self) -> None:
        """Count one that is going to be created; `CapacityError` when there is no room."""
        if self.live + self._starting >= self._settings.most_sandboxes:
            raise CapacityError(
                "sandboxes: there are as many as this server may have",
                retry_after_s=5,
                remedy="delete one, or wait until one's life is over",
            )
        self._starting += 1

    def begun(self, record: SandboxRecord | None) -> None:
        """It was created, or was not."""
        self._starting -= 1
        if record is not None:
            self._all[record.id] = record

    def expire(self) -> None:
        """Forget what ended too long ago; called now and then."""
        limit = time.monotonic() - self._settings.retention_s
        for record in list(self._all.values()):
            if record.ended_s is not None and record.ended_s <= limit:
                del self._all[record.id]
            else:
                _expire_commands(record, limit)


def _expire_commands(record: SandboxRecord, limit: float) -> None:
    for command in list(record.commands.values()):
        if command.ended_s is not None and command.ended_s <= limit:
            del record.commands[command.id]
