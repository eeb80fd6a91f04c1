"""Whose is it? The one function that every route asks.

Not the keys (`keys`). Called by `endpoint` for every thing that a path names, before the handler
runs. The invariant: a thing of another tenant and a thing that never existed give the same
answer, by the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from cellwall.model.errors import NotFound


class Owned(Protocol):
    """Anything that belongs to a tenant."""

    @property
    def owner(self) -> str:
        """The tenant."""


T = TypeVar("T", bound=Owned)


class NotYours(NotFound):
    """There is none for this owner; for the audit it says whether there is one for another."""

    is_of_other: bool = False


def owned(things: Mapping[str, T], owner: str, kind: str, name: str) -> T:
    """Return the thing called `name` if it is `owner`'s, else `NotFound`."""
    thing = things.get(name)
    if thing is None or thing.owner != owner:
        refusal = NotYours(
            f"{kind} {name[:64]!r}: there is none", remedy="look at your own; it may have expired"
        )
        refusal.is_of_other = thing is not None
        raise refusal
    return thing
