"""Submissions: what was asked for and what came of it, by token, for as long as results are kept.

In memory: the executions themselves are on the server's disk, tokens end with the server. The
invariants: a token is found by its tenant alone, and what is kept of a tenant is bounded in number
and size.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.judge0 import encoding
from cellwall.apps.doors.judge0.fields import TEXTS
from cellwall.apps.doors.judge0.languages import status_of
from cellwall.model.errors import CapacityError, NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.apps.doors.judge0.fields import Asked
    from cellwall.client.submitted import AsyncSubmitted

MOST = 10_000
"""Number of submissions that are kept of one tenant."""
MOST_CHARS = 64 * 1024 * 1024
"""Characters of their texts together."""
DEFAULT_FIELDS = (
    "token", "time", "memory", "stdout", "stderr", "compile_output", "message", "status",
)  # fmt: skip
_RESULTS = (
    "stdout", "stderr", "compile_output", "message", "exit_code", "exit_signal", "time",
    "wall_time", "memory",
)  # fmt: skip
_ASKED = (
    "source_code", "language_id", "stdin", "expected_output", "number_of_runs", "cpu_time_limit",
    "cpu_extra_time", "wall_time_limit", "memory_limit", "stack_limit",
    "max_processes_and_or_threads", "enable_per_process_and_thread_time_limit",
    "enable_per_process_and_thread_memory_limit", "max_file_size", "compiler_options",
    "command_line_arguments", "redirect_stderr_to_stdout", "callback_url", "additional_files",
    "enable_network",
)  # fmt: skip
ALL_FIELDS = (
    "token", *_ASKED, *_RESULTS, "status_id", "created_at", "finished_at", "status", "language",
)  # fmt: skip
_ENCODED = frozenset({*TEXTS, "stdout", "stderr", "compile_output", "message"})
_IN_QUEUE, _PROCESSING = 1, 2
_RETRY_S = 5.0


class Unencodable(UsageError):
    """A text has no UTF-8 form, and the request did not ask for base64."""


@dataclass(eq=False, slots=True)
class Submission:
    """One submission."""

    owner: str
    asked: Asked
    submitted: AsyncSubmitted | None = None
    """Its execution; of several runs the current one."""
    result: dict[str, Any] | None = None
    token: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_at: float = field(default_factory=time.time)
    finished_at: float | None = None
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def end(self, result: dict[str, Any]) -> None:
        """Note the result."""
        self.result = result
        self.finished_at = time.time()
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def size_chars(self) -> int:
        """Length of all its texts."""
        texts = (self.result or {}).values()
        return self.asked.size_chars + sum(len(each) for each in texts if isinstance(each, str))

    async def shown(self, fields: Sequence[str], *, is_base64: bool) -> dict[str, Any]:
        """Return the named fields as they are now."""
        facts: dict[str, Any] = {**dict.fromkeys(_RESULTS), **self.asked.values}
        facts |= self.result or {"status_id": await self._waiting()}
        facts |= {
            "token": self.token,
            "created_at": _moment(self.created_at),
            "finished_at": _moment(self.finished_at),
            "status": status_of(facts["status_id"]),
            "language": self.asked.language.as_json(),
        }
        return {name: _text(name, facts[name], is_base64) for name in fields}

    async def _waiting(self) -> int:
        if self.submitted is not None and await self.submitted.status() == "queued":
            return _IN_QUEUE
        return _PROCESSING


def _text(name: str, value: object, is_base64: bool) -> object:
    if name not in _ENCODED or not isinstance(value, str):
        return value
    if is_base64:
        return encoding.to_base64(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unencodable(
            "some attributes for this submission cannot be converted to UTF-8, use "
            "base64_encoded=true query parameter"
        ) from None
    return value


def _moment(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Submissions:
    """The submissions of all tenants; see the module."""

    def __init__(self, retention_s: float) -> None:
        """Keep an ended submission for `retention_s` seconds."""
        self._retention_s = retention_s
        self._by_owner: dict[str, OrderedDict[str, Submission]] = {}

    def check_room(self, owner: str, asked: Asked) -> None:
        """Raise `CapacityError` unless there is room for one more."""
        kept = self._swept(owner)
        size = asked.size_chars + sum(each.size_chars for each in kept.values())
        for token, each in list(kept.items()):
            if len(kept) < MOST and size <= MOST_CHARS:
                break
            if each.result is not None:
                size -= kept.pop(token).size_chars
        if len(kept) >= MOST or size > MOST_CHARS:
            raise CapacityError("queue is full", retry_after_s=_RETRY_S)

    def add(self, submission: Submission) -> None:
        """Keep a submission."""
        self._by_owner.setdefault(submission.owner, OrderedDict())[submission.token] = submission

    def find(self, owner: str, token: str) -> Submission:
        """Return the tenant's submission of that token. Raises NotFound."""
        found = self._swept(owner).get(token)
        if found is None:
            raise NotFound("submission: there is none with this token")
        return found

    def remove(self, submission: Submission) -> None:
        """Forget a submission."""
        self._swept(submission.owner).pop(submission.token, None)

    def all(self, owner: str) -> list[Submission]:
        """Return the tenant's submissions, the newest first."""
        return list(reversed(self._swept(owner).values()))

    def _swept(self, owner: str) -> OrderedDict[str, Submission]:
        kept = self._by_owner.get(owner, OrderedDict())
        oldest = time.time() - self._retention_s
        for token, each in list(kept.items()):
            if each.finished_at is not None and each.finished_at < oldest:
                del kept[token]
        if not kept:
            self._by_owner.pop(owner, None)
        return kept
