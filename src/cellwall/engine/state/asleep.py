"""What an engine keeps of a hibernated sandbox beyond its own end, besides its image.

Pure; it is one field of the header of a stored image (`snapshot_header`), and `sleepers` makes a
sandbox of it again. The invariant: times are those of the wall clock, because the next engine's
loop has another one, and what stands still is kept as what is left of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from cellwall.engine.parts.pausing import Standstill
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes.base import KernelReadings

if TYPE_CHECKING:
    from cellwall.engine.sandbox import AsyncSandbox


@dataclass(frozen=True, slots=True)
class Asleep:
    """One hibernated sandbox."""

    home: str
    """Whose it is: the id of the state directory whose engines may go on with it."""
    since: float
    """When its clocks stopped, in seconds since the epoch."""
    left_s: float
    """Seconds of its life that were left then."""
    used_s: float
    """Seconds of its earlier pauses, of those that the bound is for."""
    past_s: float
    """Seconds of all its earlier pauses."""
    contexts: Mapping[str, str]
    """The language of each context that it knows, by name."""
    isolation: Mapping[str, Any]
    """As `Isolation.as_json`, with the digest of its posture."""
    readings: Mapping[str, Any]
    """The last `KernelReadings` of its processes."""

    @classmethod
    def of(cls, sandbox: AsyncSandbox, stand: Standstill, home: str) -> Asleep:
        """Return what is to be kept of a sandbox whose clocks stand still."""
        live = sandbox.live
        return cls(
            home,
            *stand,
            contexts=sandbox.contexts.known(),
            isolation=live.isolation.as_json(),
            readings=asdict(live.readings()),
        )

    @property
    def stand(self) -> Standstill:
        """Its clocks."""
        return Standstill(self.since, self.left_s, self.used_s, self.past_s)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Asleep:
        """Return what a header has. Raises TypeError, KeyError if it is not that."""
        return cls(**{each.name: value[each.name] for each in fields(cls)})

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        return asdict(self)

    def isolated(self) -> Isolation:
        """Return the isolation that it had. Raises UsageError, KeyError if it names none."""
        said = self.isolation
        level = IsolationLevel.called(said["level"])
        rest = (said["posture"], dict(said["limits"]), said["ids"], said["profile"])
        return Isolation(said["runtime"], level, *rest)

    def read(self) -> KernelReadings:
        """Return what the kernel counted last; it uses no memory now."""
        return KernelReadings(**{**self.readings, "memory_bytes": 0, "work_bytes": 0})
