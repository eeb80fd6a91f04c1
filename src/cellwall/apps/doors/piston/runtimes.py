"""Runtimes of Piston: the languages whose tools this host has, with Piston's names for them.

The invariant: what is listed can be run, and its version is what the tool prints about itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.piston.selectors import matches
from cellwall.apps.doors.tool_versions import Version, shown, version_in
from cellwall.languages.registry import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellwall.apps.doors.installed import InstalledTools

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
    """The runtimes of this host."""

    def __init__(self, tools: InstalledTools) -> None:
        """`tools` are the tools that this host has."""
        self._tools = tools

    async def all(self) -> Sequence[PistonRuntime]:
        """Return all runtimes, in the order of our languages."""
        found = await self._tools.all()
        return [_runtime(name, tool.version) for name, tool in found.items()]

    async def find(self, name: str, selector: str) -> PistonRuntime | None:
        """Return the runtime of that name or alias whose version fits."""
        for each in await self.all():
            if name in (each.name, *each.aliases):
                return each if matches(selector, each.version) else None
        return None


def _runtime(ours: str, printed: str) -> PistonRuntime:
    name = _NAMES.get(ours, ours)
    aliases = [each for each in (ours, *LANGUAGES[ours].aliases) if each != name]
    return PistonRuntime(name, ours, tuple(aliases), version_in(printed))
