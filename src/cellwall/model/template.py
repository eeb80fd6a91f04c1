"""Templates: what is installed and preloaded, and the place of a built one.

Values only: `engine.templates.store` reads definitions, builds and finds templates; runtimes get a
`BuiltTemplate`. Everything that changes what a program inside sees is a field that `identity`
covers; a field left out of it would let two different templates share one digest and one
fork-server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cellwall.model.errors import UsageError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][^\x00-\x1f\x7f]*")
_FONT = re.compile(r"([A-Za-z0-9][A-Za-z0-9 ._-]*): (?!.*\.\.)([A-Za-z0-9_][^\x00-\x1f\x7f\\]*)")
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)(\d+(?:\.\d+){0,2})")


@dataclass(frozen=True, slots=True)
class Template:
    """One definition, built in or written by the user."""

    name: str
    description: str = ""
    packages: tuple[str, ...] = ()
    """Requirements, each pinned (`numpy==2.4.6`); installed from wheels only."""
    constraints: tuple[str, ...] = ()
    """Pins of the packages' dependencies, so that a template built later is the same; one may end
    with ` --hash=sha256:...`, and then only that file is installed."""
    preload: tuple[str, ...] = ()
    """Modules imported once by the fork-server; every sandbox starts with them in memory."""
    python: str = ">=3.8"
    """Required version of the base interpreter: clauses such as `>=3.11,<3.15`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of every process inside."""
    fonts: tuple[str, ...] = ()
    """Fonts that draw what a default font cannot, in the order in which they are asked, written
    `family: path`: its files below `site-packages`, where `*` stands for any part of a name."""
    languages: tuple[str, ...] = ("python",)
    """Names of `languages.registry`; the first one is the default inside."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a definition that could never be built."""
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        _check(_NAME, (self.name,), "template", "use a-z, 0-9, `.`, `_`, `-`, at most 63")
        where = f"template {self.name}"
        _check(_MODULE, self.preload, f"{where}: preload", "give dotted module names")
        _check(_VARIABLE, self.env, f"{where}: env", "give variable names")
        # SECURITY: names become lines of configuration files; a path stays below `site-packages`.
        _check(_FONT, self.fonts, f"{where}: fonts", "write them like `Family: package/*.ttf`")
        _check(
            _CLAUSE,
            self.python.replace(" ", "").split(","),
            f"{where}: python",
            "write it like `>=3.11,<3.15`",
        )
        # SECURITY: these become argv and lines of a file for uv; no options, no further lines.
        pins = (*self.packages, *self.constraints)
        _check(_REQUIREMENT, pins, f"{where}: packages", "write them like `numpy==2.4.6`")

    def accepts_python(self, version: tuple[int, ...]) -> bool:
        """Report whether an interpreter of `version` satisfies the `python` requirement."""
        return all(_holds(clause, version) for clause in self.python.split(","))

    def font_files(self) -> list[tuple[str, str]]:
        """Return the families of `fonts`, each with the path of its files."""
        found = [_FONT.fullmatch(font) for font in self.fonts]
        return [(each[1], each[2]) for each in found if each]

    def identity(self) -> dict[str, Any]:
        """Return everything that distinguishes this template from another, as plain JSON."""
        return {
            "packages": sorted(self.packages),
            "constraints": sorted(self.constraints),
            "preload": list(self.preload),
            "env": dict(sorted(self.env.items())),
            "languages": list(self.languages),
            # Left out where there are none, so that templates of before are not built again.
            **({"fonts": list(self.fonts)} if self.fonts else {}),
        }


@dataclass(frozen=True, slots=True)
class BuiltTemplate:
    """A template on disk, complete and read-only."""

    template: Template
    digest: str
    """32 lower-case hexadecimal digits; also the directory's name."""
    path: str
    """Path of the environment: `bin/`, `lib/`, `pyvenv.cfg`; relocatable, so it may be mounted
    anywhere."""
    python: str
    """Path of its interpreter, `<path>/bin/python`, a link to the base interpreter.

    SECURITY: never started on the host: packages lie beside it, and it runs their code (`.pth`
    files) before the first line that it is given. Inside, the path is different.
    """
    base_python: str
    """Path of the base interpreter: real path on the host, outside of every template."""
    base_mounts: tuple[str, ...]
    """Trees outside `/usr` that the interpreter needs mounted read-only at the same place."""
    size_bytes: int
    """Sum of the files' sizes in bytes."""


def _check(pattern: re.Pattern[str], values: Iterable[object], where: str, remedy: str) -> None:
    for value in values:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise UsageError(f"{where}: {value!r} is not valid", remedy=remedy)


def _holds(clause: str, version: tuple[int, ...]) -> bool:
    matched = _CLAUSE.fullmatch(clause.replace(" ", ""))
    if matched is None:  # __post_init__ refused it already
        return False
    wanted = tuple(int(part) for part in matched[2].split("."))
    # `==3.11` means any 3.11.x, so compare only as many parts as were written.
    have = version[: len(wanted)]
    return {
        ">=": have >= wanted,
        "<=": have <= wanted,
        "==": have == wanted,
        "!=": have != wanted,
        ">": have > wanted,
        "<": have < wanted,
    }[matched[1]]
