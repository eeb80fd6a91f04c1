"""Options of a door in the operator's settings, beside `port` and `tenant`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_none(name: str, options: Mapping[str, object]) -> None:
    """Raise `UsageError` if there are options: this door has none."""
    for each in options:
        raise UsageError(
            f"settings: doors.{name}.{each[:40]} is not known", remedy="known: port, tenant"
        )
