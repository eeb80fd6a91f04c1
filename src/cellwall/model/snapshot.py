"""Copies of sandboxes: what a fork gives, and a snapshot as it is now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from cellwall.model.errors import CellwallError, UsageError

MOST_FORKS = 256
"""Most copies that one call makes."""
DAY_S = 86_400.0
MOST_EXPIRES_S = 30 * DAY_S
"""Most seconds for which a snapshot is kept."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME_PATTERN = f"^{_NAME.pattern}$"
"""What a schema says of a snapshot's name."""

Scope = Literal["session", "tree"]
"""What a copy has of its source: the session in Python and the files, or every process, too."""
Threads = Literal["refuse", "drop"]
"""What a copy of a session with threads beside its own is: refused, or made without them."""
Keep = Literal["session", "files"]
"""What a hibernated sandbox keeps: its session in Python and its files, or its files alone."""

S = TypeVar("S")


class CopyChoice(NamedTuple):
    """What a caller wants of a copy."""

    scope: Scope | None = None
    """The least that it has of its source; None: what the runtime carries."""
    threads: Threads = "refuse"

    @property
    def drops_threads(self) -> bool:
        """Whether threads are left behind. Raises UsageError for an unknown word."""
        if self.threads not in ("refuse", "drop"):
            raise UsageError(
                f"fork: threads: {self.threads!r} is unknown", remedy="give 'refuse' or 'drop'"
            )
        return self.threads == "drop"


@dataclass(frozen=True, slots=True)
class Fork(Generic[S]):
    """One copy of a sandbox, or why there is none."""

    made: S | None
    """The copy; None if it failed."""
    error: CellwallError | None = None
    """Why there is no copy."""
    left_behind: tuple[str, ...] = ()
    """What the source had and the copy has not, such as sockets and other processes."""
    carries: Scope = "session"

    @property
    def sandbox(self) -> S:
        """The copy. Raises the error if there is none."""
        if self.made is None:
            raise self.error or CellwallError("fork: there is no copy")
        return self.made


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session that was written down, and can be made a sandbox again any number of times."""

    id: str
    name: str
    template: str
    created_at: float
    """When it was made, in seconds since the epoch."""
    expires_at: float
    """When it is deleted."""
    memory_bytes: int
    """Size of what differs from a fresh session in memory."""
    files_bytes: int
    """Size of the archive of its files."""
    left_behind: tuple[str, ...] = ()
    """What the session had and its copies have not."""
    carries: Scope = "session"
    durable: bool = False
    """Whether it outlives the engine that made it, and a reboot."""


def check_keep(keep: str) -> Keep:
    """Return what a hibernation is to keep. Raises UsageError for an unknown word."""
    if keep == "session":
        return "session"
    if keep == "files":
        return "files"
    raise UsageError(f"hibernate: keep: {keep!r} is unknown", remedy="give 'session' or 'files'")


def check_name(name: str) -> str:
    """Return the name of a snapshot. Raises UsageError if it cannot be one."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"snapshot: {name[:64]!r} cannot be a name",
            remedy="use 1 to 63 letters, digits, '.', '_' and '-'; begin with a letter or a digit",
        )
    return name


def check_expiry(expires_s: float) -> None:
    """Raise UsageError if a snapshot cannot be kept for that many seconds."""
    if not 0 < expires_s <= MOST_EXPIRES_S:
        raise UsageError(
            f"snapshot: expires_s: {expires_s!r} is out of bounds",
            remedy=f"give more than 0, and at most {MOST_EXPIRES_S:g}",
        )


def check_count(count: int) -> int:
    """Return the number of copies to make. Raises UsageError."""
    if type(count) is not int or not 1 <= count <= MOST_FORKS:
        raise UsageError(
            f"fork: {count!r} is no number of copies", remedy=f"give 1 to {MOST_FORKS}"
        )
    return count
