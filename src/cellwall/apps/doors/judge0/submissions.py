"""Submissions: what was asked for and what came of it, by token, for as long as results are kept.

In memory: the executions themselves are on the server's disk, tokens end with the server. The
invariants: a token is found by its tenant alone, and what is kept of a tenant is bounded in number
and size.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.judge0 import encoding
from cellwall.apps.doors.judge0.fields import TEXTS
from cellwall.apps.doors.judge0.languages import status_of
from cellwall.apps.doors.judge0.tokens import new_token
from cellwall.model.errors import CapacityError, NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellwall.apps.doors.judge0.fields import Asked
    from cellwall.client.submitted import AsyncSubmitted

MOST = 10_000
"""Number of submissions that are kept of one tenant."""
MOST_SIZE = 64 * 1024 * 1024
"""Length of their texts and unpacked files together."""
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
    token: str = field(default_factory=new_token)
    created_at: float = field(default_factory=time.time)
    finished_at: float | None = None
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def end(self, result: dict[str, Any]) -> None:
        """Note the result, and let go of the program."""
        self.result = result
        self.asked = self.asked.without_program()
        self.finished_at = time.time()
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def size(self) -> int:
        """Length of all its texts and files."""
        return self.asked.size + _length(self.result or {})

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
        is_queued = self.submitted is None or await self.submitted.status() == "queued"
        return _IN_QUEUE if is_queued else _PROCESSING


def _length(result: Mapping[str, Any]) -> int:
    return sum(len(each) for each in result.values() if isinstance(each, str))


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


@dataclass(slots=True)
class _Kept:
    """The submissions of one tenant, the oldest first."""

    by_token: OrderedDict[str, Submission] = field(default_factory=OrderedDict)
    size: int = 0
    """Length of their texts and files together."""

    def drop(self, *submissions: Submission) -> None:
        for each in submissions:
            if self.by_token.pop(each.token, None) is not None:
                self.size -= each.size

    def leaving(self, count: int, size: int) -> tuple[list[Submission], bool]:
        """Return the oldest that have ended and have to leave for more, and if that is enough."""
        found: list[Submission] = []
        freed = 0
        ended = (each for each in self.by_token.values() if each.result is not None)
        while not self._has_room(count - len(found), size - freed):
            oldest = next(ended, None)
            if oldest is None:
                return found, False
            found.append(oldest)
            freed += oldest.size
        return found, True

    def _has_room(self, count: int, size: int) -> bool:
        return len(self.by_token) + count <= MOST and self.size + size <= MOST_SIZE


class Submissions:
    """The submissions of all tenants; see the module."""

    def __init__(self, retention_s: float) -> None:
        """Keep an ended submission for `retention_s` seconds."""
        self._retention_s = retention_s
        self._by_owner: dict[str, _Kept] = {}

    def add(self, submission: Submission) -> None:
        """Keep a submission; the oldest that have ended make room.

        Raises `CapacityError` if that is not enough, `UsageError` if it never could be; then none
        has left.
        """
        if submission.size > MOST_SIZE:
            raise UsageError(f"submission: it has more than {MOST_SIZE} bytes unpacked")
        for owner in list(self._by_owner):  # what is over leaves, although its tenant is away
            self._swept(owner)
        kept = self._by_owner.get(submission.owner, _Kept())
        leaving, is_enough = kept.leaving(1, submission.size)
        if not is_enough:
            raise CapacityError("queue is full", retry_after_s=_RETRY_S)
        kept.drop(*leaving)
        self._by_owner[submission.owner] = kept
        kept.by_token[submission.token] = submission
        kept.size += submission.size

    def end(self, submission: Submission, result: dict[str, Any]) -> None:
        """Note the result of a submission; older results make room for it."""
        kept, before = self._by_owner[submission.owner], submission.size
        leaving, _ = kept.leaving(0, _length(result))  # it has not ended, so it stays itself
        kept.drop(*leaving)
        submission.end(result)
        kept.size += submission.size - before

    def find(self, owner: str, token: str) -> Submission:
        """Return the tenant's submission of that token. Raises NotFound."""
        found = self._swept(owner).by_token.get(token)
        if found is None:
            raise NotFound("submission: there is none with this token")
        return found

    def remove(self, submission: Submission) -> None:
        """Forget a submission."""
        self._swept(submission.owner).drop(submission)

    def all(self, owner: str) -> list[Submission]:
        """Return the tenant's submissions, the newest first."""
        return list(reversed(self._swept(owner).by_token.values()))

    def _swept(self, owner: str) -> _Kept:
        """Return what is kept of a tenant, without the oldest ones whose time is over."""
        kept = self._by_owner.get(owner, _Kept())
        over = time.time() - self._retention_s
        while kept.by_token:
            oldest = next(iter(kept.by_token.values()))
            if oldest.finished_at is None or oldest.finished_at >= over:
                break
            kept.drop(oldest)
        if not kept.by_token:
            self._by_owner.pop(owner, None)
        return kept
