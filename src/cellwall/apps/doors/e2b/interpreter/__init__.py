"""The code interpreter of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.apps.doors.e2b.seat import SeatRoute

ROUTES: Sequence[SeatRoute] = ()
