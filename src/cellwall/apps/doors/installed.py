"""Tools of languages on this host, looked for when a door is made and again from time to time.

Asking two dozen tools for their versions takes seconds, longer than clients wait; so it is done
before the first of them comes. The invariant: one look at a time, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from cellwall.languages.registry import LANGUAGES, Installed, detect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.surface.shared.tasks import Tasks

_KEPT_S = 60.0


class InstalledTools:
    """The tools by our name of their language; see the module. Lives on one event loop."""

    def __init__(self, tasks: Tasks) -> None:
        """Begin to look, among `tasks`."""
        self._found: Mapping[str, Installed] = {}
        self._until = 0.0
        self._looking = asyncio.Lock()
        tasks.spawn(self._look())

    async def all(self) -> Mapping[str, Installed]:
        """Return the tools, in the order of our languages."""
        if time.monotonic() >= self._until:
            await self._look()
        return self._found

    async def _look(self) -> None:
        async with self._looking:
            if time.monotonic() >= self._until:
                self._found = await asyncio.to_thread(_detected)
                self._until = time.monotonic() + _KEPT_S


def _detected() -> dict[str, Installed]:
    # SQL is no program of its own.
    found = {each.name: detect(each) for each in LANGUAGES.values() if each.run}
    return {name: tool for name, tool in found.items() if tool is not None}
