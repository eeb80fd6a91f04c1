"""Path rules: what a request to the `process` runtime may name; interpreters, directories, files.

An allow-list against mistakes, not a boundary: the code that runs can open whatever its user can.
Every path is resolved first, links and `..` included, and compared afterwards; a comparison of the
given text is the usual way around such lists.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cellwall.model.errors import UsageError

_INTERPRETERS = ("sh", "bash", "node", "python3")
_FILE_OPS = ("file_", "tree_")


@dataclass(frozen=True, slots=True)
class PathRules:
    """Real paths: programs that may be started, and trees in which paths may lie."""

    interpreters: frozenset[str]
    roots: tuple[str, ...]
    home: str
    search_path: str

    @classmethod
    def of(cls, home: str, python: str, search_path: str, more: Iterable[str] = ()) -> PathRules:
        """Allow the usual interpreters, `python` and `more`, and the tree of `home`."""
        names = (*_INTERPRETERS, *more)
        found = [shutil.which(name, path=search_path) for name in names]
        return cls(
            interpreters=frozenset(os.path.realpath(p) for p in (*found, python) if p),
            roots=(os.path.realpath(home),),
            home=home,
            search_path=search_path,
        )

    def check_request(self, op: str, fields: Mapping[str, Any]) -> None:
        """Raise `UsageError` when a guest request names a program or path that is not allowed."""
        if op == "start":
            self.check_program(str(fields["argv"][0]), fields.get("cwd"))
        elif op.startswith(_FILE_OPS):
            self._check_path(str(fields["path"]))
            if op == "file_move":
                self._check_path(str(fields["target"]))

    def check_program(self, program: str, cwd: str | None) -> None:
        """Raise unless `program` is an allowed interpreter or lies within the roots."""
        base = self.home if cwd is None else os.path.join(self.home, cwd)
        self._check_path(base)
        if os.sep in program:
            real = os.path.realpath(os.path.join(base, program))
        else:
            found = shutil.which(program, path=self.search_path)
            if found is None:
                return  # the guest reports "not found", as for any other name
            real = os.path.realpath(found)
        if real not in self.interpreters and not self._is_within(real):
            raise UsageError(
                f"process runtime: start {program!r}: {real} is not an allowed interpreter",
                remedy="use a runtime that isolates (isolation='namespace'), or call it from one "
                f"of: {', '.join(sorted(self.interpreters))}",
            )

    def _check_path(self, path: str) -> None:
        real = os.path.realpath(os.path.join(self.home, path))
        if not self._is_within(real):
            raise UsageError(
                f"process runtime: path {path!r} is outside the sandbox's directory",
                remedy="use relative paths, or a runtime that isolates (isolation='namespace')",
            )

    def _is_within(self, real: str) -> bool:
        return any(real == root or real.startswith(root + os.sep) for root in self.roots)
