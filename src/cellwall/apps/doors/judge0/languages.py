"""Languages of Judge0 by number, as far as this host has them, and the statuses.

The numbers are those of release 1.13.1; the version in a name is this host's. Several numbers stand
for one language where Judge0 has several compilers. The invariant: a listed language can be run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.tool_versions import shown, version_in
from cellwall.languages.registry import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.languages.registry import Installed, Language

_NUMBERS: Mapping[int, tuple[str, str]] = {
    46: ("bash", "Bash"),
    48: ("c", "C"),
    49: ("c", "C"),
    50: ("c", "C"),
    51: ("csharp", "C#"),
    52: ("cpp", "C++"),
    53: ("cpp", "C++"),
    54: ("cpp", "C++"),
    59: ("fortran", "Fortran"),
    60: ("go", "Go"),
    61: ("haskell", "Haskell"),
    62: ("java", "Java"),
    63: ("javascript", "JavaScript"),
    64: ("lua", "Lua"),
    65: ("ocaml", "OCaml"),
    66: ("octave", "Octave"),
    67: ("pascal", "Pascal"),
    68: ("php", "PHP"),
    69: ("prolog", "Prolog"),
    71: ("python", "Python"),
    72: ("ruby", "Ruby"),
    73: ("rust", "Rust"),
    74: ("typescript", "TypeScript"),
    78: ("kotlin", "Kotlin"),
    80: ("r", "R"),
    85: ("perl", "Perl"),
}
STATUSES: Mapping[int, str] = {
    1: "In Queue",
    2: "Processing",
    3: "Accepted",
    4: "Wrong Answer",
    5: "Time Limit Exceeded",
    6: "Compilation Error",
    7: "Runtime Error (SIGSEGV)",
    8: "Runtime Error (SIGXFSZ)",
    9: "Runtime Error (SIGFPE)",
    10: "Runtime Error (SIGABRT)",
    11: "Runtime Error (NZEC)",
    12: "Runtime Error (Other)",
    13: "Internal Error",
    14: "Exec Format Error",
}


@dataclass(frozen=True, slots=True)
class JudgeLanguage:
    """One language."""

    id: int
    name: str
    language: Language

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `/languages`."""
        return {"id": self.id, "name": self.name}

    def in_full(self) -> dict[str, Any]:
        """Return the answer of `/languages/{id}`."""
        return {
            **self.as_json(),
            "is_archived": False,
            "source_file": self.language.file_name,
            "compile_cmd": " ".join(self.language.compile) or None,
            "run_cmd": " ".join(self.language.run),
        }


def served(tools: Mapping[str, Installed]) -> dict[int, JudgeLanguage]:
    """Return the languages by number whose tools are there."""
    found: dict[int, JudgeLanguage] = {}
    for number, (ours, name) in _NUMBERS.items():
        tool = tools.get(ours)
        if tool is not None:
            version = shown(version_in(tool.version))
            found[number] = JudgeLanguage(number, f"{name} ({version})", LANGUAGES[ours])
    return found


def status_of(number: int) -> dict[str, Any]:
    """Return a status as answers show it."""
    return {"id": number, "description": STATUSES[number]}
