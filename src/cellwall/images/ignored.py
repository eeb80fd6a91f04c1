"""What `.dockerignore` leaves out of a context.

Pure but for the reading of that file. Used where a context is packed on its way to a server, and
where an instruction copies of it.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

FILE = ".dockerignore"
_MOST_LINES = 1000


class Ignored:
    """The patterns of one directory; the last one that fits a name decides."""

    def __init__(self, folder: Path) -> None:
        """Read the file, if the directory has one."""
        path = folder / FILE
        lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
        self._lines = [line.strip() for line in lines if line.strip() and line[0] != "#"]
        self._lines = self._lines[:_MOST_LINES]

    def has(self, name: str) -> bool:
        """Report whether a name, relative to the directory, is left out."""
        ignored = False
        for line in self._lines:
            pattern = line.lstrip("!").strip("/")
            if (
                (
                    pattern.startswith("**/")
                    and fnmatch.fnmatchcase(os.path.basename(name), pattern[3:])
                )
                or fnmatch.fnmatchcase(name, pattern)
                or name.startswith(f"{pattern}/")
            ):
                ignored = not line.startswith("!")
        return ignored
