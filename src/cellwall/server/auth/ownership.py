"""Ownership check: the one function that every route uses to find an object.

Called by `endpoint` for every object that a path names, before the handler runs. Keys are in
`keys`. The invariant: an object of another tenant and an object that never existed give the same
answer, by the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from cellwall.model.errors import NotFound


class Owned(Protocol):
    """An object that belongs to a tenant."""

    @property
    def owner(self) -> str:
        """The tenant."""


T = TypeVar("T", bound=Owned)


class NotYours(NotFound):
    """The owner has no such object; `is_of_other` tells the audit whether another tenant has it."""

    is_of_other: bool = False


def owned(things: Mapping[str, T], owner: str, kind: str, name: str) -> T:
    """Return the object called `name` if it belongs to `owner`, else raise `NotFound`."""
    thing = things.get(name)
    if thing is None or thing.owner != owner:
        refusal = NotYours(
            f"{kind} {name[:64]!r}: there is none", remedy="look at your own; it may have expired"
        )
        refusal.is_of_other = thing is not None
        raise refusal
    return thing
