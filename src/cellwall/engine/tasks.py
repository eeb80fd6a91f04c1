"""Where the engine's packages find the supervised task group; it lives in `shared.tasks`."""

from __future__ import annotations

from cellwall.surface.shared.tasks import Tasks

__all__ = ["Tasks"]
