"""Guards, each left out once, and the tests that have to notice: the tables beside this, read.

A table (`*.toml`) has a row for each mutation: what it belongs to (`finding`), the `guard` in
words, `old` text of a `file` that stands there once, the `new` text, and `tests`, every one of
which has to fail then. Not the running of them (`leave_out`). Those of one guard alone are in
`attack/test_attack_mutation`, which drops parts of the jail inside a fork-server; here the source
itself says something else, so that every process has it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_QUICK = "unit/"


@dataclass(frozen=True)
class Mutant:
    """One guard left out."""

    finding: str
    """Of the review (F1 to F15), of other people's suites (S1, S2), P3: limits in sessions, D:
    doors for foreign clients, L: the network, or the room it is in."""
    guard: str
    file: str
    """From the top of the repository."""
    old: str
    new: str
    tests: tuple[str, ...]
    """`unit/test_module::test_name`, whatever the room of `unit` the module is in.

    Of a class `…::Class::test_name`; all cases, or one: `[…]`.
    """

    @property
    def name(self) -> str:
        """Says which it is."""
        return f"{self.finding}: {self.guard}"

    def quick(self) -> tuple[str, ...]:
        """Return its tests that take no sandbox."""
        return tuple(test for test in self.tests if test.startswith(_QUICK))

    def apply(self, text: str) -> str:
        """Return what the file says without the guard."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {text.count(self.old)} times")
        return text.replace(self.old, self.new)


def load() -> list[Mutant]:
    """Return all rows of all tables."""
    rows: list[dict[str, Any]] = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        rows += tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


@cache
def _names_in(path: Path) -> frozenset[str]:
    """Return names of a module's functions and classes, those of its classes behind `::`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
    return frozenset(found)


@cache
def path_of(module: str) -> str | None:
    """Return where a module of tests is, from the top of the repository: `unit/test_module`."""
    folder, _, name = module.partition("/")
    found = list((ROOT / "tests" / folder).rglob(f"{name}.py"))
    return str(found[0].relative_to(ROOT)) if len(found) == 1 else None


def is_there(test: str) -> bool:
    """Report whether a test of that name exists; of a class only the class is looked for."""
    module, _, name = re.sub(r"\[.*", "", test).partition("::")
    path = path_of(module)
    return path is not None and name.partition("::")[0] in _names_in(ROOT / path)
