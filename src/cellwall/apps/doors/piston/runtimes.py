"""Runtimes of Piston: the languages whose tools this host has, with Piston's names for them.

The invariant: what is listed can be run, and its version is what the tool prints about itself.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.piston.selectors import matches
from cellwall.apps.doors.tool_versions import Version, shown, version_in
from cellwall.languages.registry import LANGUAGES, detect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMES: Mapping[str, str] = {"cpp": "c++", "r": "rscript"}
"""Piston's names where they are not ours."""
_RUNTIMES: Mapping[str, str] = {
    "javascript": "node",
    "typescript": "node",
    "csharp": "mono",
    "c": "gcc",
    "cpp": "gcc",
    "fortran": "gcc",
}
_KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class PistonRuntime:
    """One language."""

    name: str
    """Piston's name."""
    language: str
    """Our name."""
    aliases: tuple[str, ...]
    version: Version

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `/runtimes`."""
        runtime = _RUNTIMES.get(self.language)
        return {
            "language": self.name,
            "version": shown(self.version),
            "aliases": list(self.aliases),
            **({} if runtime is None else {"runtime": runtime}),
        }


class Runtimes:
    """The runtimes of this host, which are looked up again once a minute."""

    def __init__(self) -> None:
        """Look up nothing yet."""
        self._found: Sequence[PistonRuntime] = ()
        self._until = 0.0
        self._looking = asyncio.Lock()

    async def all(self) -> Sequence[PistonRuntime]:
        """Return all runtimes, in the order of our languages."""
        if time.monotonic() < self._until:
            return self._found
        async with self._looking:
            if time.monotonic() >= self._until:
                self._found = await asyncio.to_thread(_look)
                self._until = time.monotonic() + _KEPT_S
        return self._found

    async def find(self, name: str, selector: str) -> PistonRuntime | None:
        """Return the runtime of that name or alias whose version fits."""
        for each in await self.all():
            if name in (each.name, *each.aliases):
                return each if matches(selector, each.version) else None
        return None


def _look() -> list[PistonRuntime]:
    found: list[PistonRuntime] = []
    for language in LANGUAGES.values():
        installed = detect(language) if language.run else None  # SQL is no program of its own
        if installed is not None:
            name = _NAMES.get(language.name, language.name)
            aliases = [each for each in (language.name, *language.aliases) if each != name]
            version = version_in(installed.version)
            found.append(PistonRuntime(name, language.name, tuple(aliases), version))
    return found
