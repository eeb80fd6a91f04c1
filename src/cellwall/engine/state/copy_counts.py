"""Counts of the copies of one engine: made by forks and restores, kept, and refused by cause.

Kept by `copies.Copies`, whose methods `counted` wraps; read by `/stats`, metrics and the command
line.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from cellwall.model.errors import CellwallError
from cellwall.model.snapshot import Fork

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CopyStatistics:
    """Copies and snapshots of one engine since its start."""

    forks: int = 0
    """Number of sandboxes that forks made."""
    restores: int = 0
    """Number of sandboxes that were made of snapshots."""
    snapshots_made: int = 0
    snapshots: int = 0
    """Number of the snapshots that are kept now."""
    snapshots_bytes: int = 0
    """Bytes of these: their memory and their files."""
    hibernations: int = 0
    """Number of times that a sandbox was hibernated."""
    wakes: int = 0
    """Number of times that a hibernated sandbox came back."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Number of copies and snapshots that were not made, by the code of the error."""


class CopyCounts:
    """What an engine counts of its copies."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self.made: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def add(self, what: str, result: object) -> None:
        """Count the result of `fork`, `snapshot` or `restore`."""
        for each in result if isinstance(result, list) else [None]:
            if isinstance(each, Fork) and each.made is None:
                self.refuse(each.error)
            else:
                self.made[what] += 1

    @contextlib.contextmanager
    def counting(self, what: str) -> Iterator[None]:
        """Count what the block makes, or why it does not."""
        try:
            yield
        except CellwallError as error:
            self.refuse(error)
            raise
        self.made[what] += 1

    def refuse(self, error: CellwallError | None) -> None:
        """Count what was not made."""
        self.refused["error" if error is None else error.code] += 1

    def statistics(self, snapshots: int, snapshots_bytes: int) -> CopyStatistics:
        """Return the counts, with what is kept now."""
        return CopyStatistics(
            self.made["fork"],
            self.made["restore"],
            self.made["snapshot"],
            snapshots,
            snapshots_bytes,
            self.made["hibernate"],
            self.made["wake"],
            dict(self.refused),
        )


class _Counts(Protocol):
    @property
    def counts(self) -> CopyCounts: ...


S = TypeVar("S", bound=_Counts)


def counted(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Wrap a method that makes copies, so that what it makes and refuses is counted."""

    @functools.wraps(method)
    async def wrapped(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = await method(self, *args, **kwargs)
        except CellwallError as error:
            self.counts.refuse(error)
            raise
        self.counts.add(method.__name__, result)
        return result

    return wrapped
