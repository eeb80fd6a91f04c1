"""Builds as E2B's clients see them: reserved, started, followed to their end by their log.

They are in memory alone: a build that has succeeded is found by the template that it made, and of
others a server that was restarted knows nothing, as it has ended them. The invariants: a build is
found by its tenant alone; entries of a log keep their numbers, because clients go by those.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.e2b.answers import missing
from cellwall.model.errors import CapacityError
from cellwall.server.core.errors import HttpError
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.building.translation import Plan
    from cellwall.apps.doors.e2b.templates.built_facts import BuiltFacts

_MOST_ENTRIES = 10_000
_MOST_CHARACTERS = 1 << 20
_MOST_SHOWN = 100
_MOST_OF_TENANT = 50
_MOST = 1000
_KEPT_S = 3600.0
BASE, FINALIZE = "base", "finalize"
"""What E2B calls the parts of a build before and behind its steps."""


@dataclass(slots=True)
class Build:
    """One build."""

    tenant: str
    stem: str
    """The template's name."""
    tags: tuple[str, ...]
    asked: BuiltFacts
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = "waiting"
    """`waiting`, `building`, `ready` or `error`."""
    changed_at: float = field(default_factory=time.monotonic)
    reason: dict[str, Any] | None = None
    plan: Plan | None = None
    displaced: frozenset[str] = frozenset()
    """Ids of the builds that a tag meant which this build takes."""
    _entries: list[dict[str, Any]] = field(default_factory=list)
    _characters: int = 0

    def tell(self, message: str, line: int, level: str = "info") -> None:
        """Write to the log, about the step of a line; the end of a very long one is left out."""
        if self._is_full():
            return
        self._characters += len(message)
        entry = {"timestamp": rfc3339(time.time()), "message": message, "level": level}
        self._entries.append({**entry, "step": self.step_of(line)})
        if self._is_full():
            text = "the log is too long: the rest is left out"
            self._entries.append({**entry, "message": text, "level": "warn"})

    def _is_full(self) -> bool:
        return len(self._entries) >= _MOST_ENTRIES or self._characters > _MOST_CHARACTERS

    def step_of(self, line: int) -> str:
        """Return E2B's name of the step that a line of the Dockerfile belongs to."""
        number = 0 if self.plan is None else self.plan.steps.get(line)
        if number is None:
            return FINALIZE
        return str(number) if number else BASE

    def change(self, status: str, message: str | None = None, step: str = FINALIZE) -> None:
        """Note another status, and of `error` the reason."""
        self.status, self.changed_at = status, time.monotonic()
        if message is not None:
            self.reason = {"message": message, "step": step, "logEntries": self._entries[-10:]}

    def as_json(self, offset: int = 0, limit: int = _MOST_SHOWN) -> dict[str, Any]:
        """Return the object that clients poll, with entries of the log from `offset` on."""
        shown = self._entries[offset : offset + min(limit, _MOST_SHOWN)]
        about = {} if self.reason is None else {"reason": self.reason}
        return {
            "templateID": self.stem,
            "buildID": self.id,
            "status": self.status,
            "logs": [each["message"] for each in shown],
            "logEntries": shown,
            **about,
        }


def done_before(stem: str, build_id: str) -> dict[str, Any]:
    """Return the object of a build that only its template is left of."""
    shown = {"templateID": stem, "buildID": build_id, "status": "ready"}
    return {**shown, "logs": [], "logEntries": []}


class Builds:
    """The builds of one server."""

    def __init__(self) -> None:
        self._all: dict[str, Build] = {}

    def reserve(self, build: Build) -> Build:
        """Take in a build. Raises CapacityError, and the 409 for one that is under way."""
        self.check_free(build)
        self._expire()
        mine = [each for each in self._all.values() if each.tenant == build.tenant]
        self._make_room(mine, _MOST_OF_TENANT)
        self._make_room(list(self._all.values()), _MOST)
        self._all[build.id] = build
        return build

    def check_free(self, build: Build) -> None:
        """Raise the 409 if the same name is being built with one of the tags."""
        for each in self._all.values():
            is_same = (each.tenant, each.stem) == (build.tenant, build.stem)
            if is_same and each.status == "building" and set(each.tags) & set(build.tags):
                raise HttpError(
                    409, "conflict", f"a build of {build.stem}:{each.tags[0]} is already under way"
                )

    def get(self, tenant: str, stem: str, build_id: str) -> Build:
        """Return the tenant's build. Raises the 404."""
        found = self._all.get(build_id)
        if found is None or (found.tenant, found.stem) != (tenant, stem):
            raise missing(f"build '{build_id[:64]}' not found")
        return found

    def has(self, tenant: str, stem: str) -> bool:
        """Report whether the tenant has reserved a build of the name."""
        return any((each.tenant, each.stem) == (tenant, stem) for each in self._all.values())

    def _make_room(self, among: list[Build], most: int) -> None:
        if len(among) < most:
            return
        idle = [each for each in among if each.status != "building"]
        if not idle:
            raise CapacityError("builds: too many", retry_after_s=30, remedy="try later")
        del self._all[min(idle, key=lambda each: each.changed_at).id]

    def _expire(self) -> None:
        limit = time.monotonic() - _KEPT_S
        for each in list(self._all.values()):
            if each.status != "building" and each.changed_at < limit:
                del self._all[each.id]
