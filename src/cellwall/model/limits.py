"""Limits of a sandbox and of one execution in it.

Each runtime enforces them; the operator's bounds are settings. Every number carries its unit in its
name; there is no "unlimited".
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from cellwall.model.errors import UsageError

_DAY_S = 86_400.0
_BOUNDS: dict[str, tuple[float, float]] = {
    "wall_s": (0.001, 86_400),
    "cpu_s": (0.001, 86_400),
    "cpus": (0.01, 1024),
    "memory_mb": (16, 1_048_576),
    "processes": (1, 100_000),
    "disk_mb": (1, 1_048_576),
    "inodes": (64, 100_000_000),
    "file_mb": (1, 1_048_576),
    "output_kb": (1, 65_536),
    "open_files": (16, 1_048_576),
    "idle_s": (1, 604_800),
    "life_s": (1, 604_800),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what a sandbox may use. The defaults are those of DESIGN.md §8."""

    wall_s: float = 30.0
    """Seconds from the start of an execution or command to its end, on the monotonic clock."""
    cpu_s: float = 30.0
    """CPU seconds of one execution or command, with all its processes."""
    cpus: float = 1.0
    """Share of CPUs, 1.0 = one core; the sandbox sees this number, rounded up."""
    memory_mb: int = 512
    """MiB of memory of the whole tree: anonymous, shared, tmpfs and page tables. Swap is off."""
    processes: int = 100
    """Number of processes and threads of the whole tree, without cellwall's own."""
    disk_mb: int = 256
    """MiB of the work area: home, /tmp and /dev/shm together."""
    inodes: int = 16_384
    """Number of files and directories in the work area."""
    file_mb: int = 64
    """MiB of the largest single file."""
    output_kb: int = 1024
    """KiB kept of each of stdout and stderr; the rest is drained and counted."""
    open_files: int = 256
    """Number of descriptors per process."""
    idle_s: float = 600.0
    """Seconds without activity after which a sandbox is destroyed."""
    life_s: float = 3600.0
    """Seconds after which a sandbox is destroyed whatever it does."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a value that is not a number within its bounds."""
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = _BOUNDS[field.name]
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise UsageError(
                    f"limits.{field.name}: {value!r} is not a number",
                    remedy=f"give a number from {low:g} to {high:g}",
                )
            if not low <= value <= high:
                raise UsageError(
                    f"limits.{field.name}: {value:g} is out of bounds",
                    remedy=f"give a number from {low:g} to {high:g}",
                )
            if field.type == "int" and not isinstance(value, int):
                raise UsageError(
                    f"limits.{field.name}: {value:g} is not a whole number",
                    remedy="give a whole number",
                )

    @classmethod
    def agent(cls, **changes: Any) -> Limits:  # noqa: ANN401 - of a field's type
        """Return limits for a sandbox that an agent works in, with `changes`.

        An hour for each execution or command, and of CPU time for it: agents build, install and
        test, and have time limits of their own. A day for the sandbox, because a turn of the
        agent's model has no fixed length. All other limits have their defaults.
        """
        return cls(wall_s=3600, cpu_s=3600, idle_s=_DAY_S, life_s=_DAY_S).with_changes(changes)

    def with_changes(self, changes: dict[str, Any]) -> Limits:
        """Return these limits with `changes`; an unknown name is a `UsageError`."""
        unknown = sorted(set(changes) - set(_BOUNDS))
        if unknown:
            raise UsageError(
                f"limits: unknown name {unknown[0]!r}",
                remedy=f"known names: {', '.join(_BOUNDS)}",
            )
        named = {k: v for k, v in changes.items() if v is not None}
        return replace(self, **named) if named else self

    @property
    def memory_bytes(self) -> int:
        """`memory_mb` in bytes."""
        return self.memory_mb * 1024 * 1024

    @property
    def output_bytes(self) -> int:
        """`output_kb` in bytes."""
        return self.output_kb * 1024
