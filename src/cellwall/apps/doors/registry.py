"""The doors that there are, by name. A door's module is imported only if the operator opens it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.apps.doors.door import MakeDoor

MODULES: Mapping[str, str] = {"e2b": "e2b.front.door"}
"""Module of each door; its function `make_door` is a `MakeDoor`."""


def maker_of(name: str) -> MakeDoor:
    """Return what makes the door called `name`. Raises UsageError."""
    if name not in MODULES:
        raise UsageError(
            f"settings: doors: {name[:40]!r} is not known",
            remedy=f"one of: {', '.join(sorted(MODULES))}",
        )
    maker: MakeDoor = import_module(f"cellwall.apps.doors.{MODULES[name]}").make_door
    return maker
