"""Where the engine's packages find the supervised task group; it lives in `surface.tasks`."""

from __future__ import annotations

from cellwall.surface.tasks import Tasks

__all__ = ["Tasks"]
