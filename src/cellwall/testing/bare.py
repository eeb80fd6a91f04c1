"""Bare templates: a template with an empty environment of the system's Python.

For tests of runtimes and of the engine, which must not need a package index. It is not a template
store for users: it knows one name, and its files belong to the test's directory.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cellwall.model.errors import NotFound
from cellwall.model.template import BuiltTemplate, Template

_PYTHON = "/usr/bin/python3"


class BareTemplates:
    """Template store for `Engine` with the one template `python`."""

    def __init__(self, path: Path, languages: tuple[str, ...] = ("python",)) -> None:
        """Make the environment at `path`; images have the tools of `languages`."""
        subprocess.run(
            [_PYTHON, "-m", "venv", "--without-pip", "--symlinks", str(path)],
            check=True,
        )
        # Sandboxes run as a foreign uid: every user must be able to enter the path.
        for directory in (path, *path.parents):
            if directory.stat().st_mode & 0o077 == 0:
                directory.chmod(0o755)
        self._built = BuiltTemplate(
            Template("python", languages=languages),
            "bare".ljust(32, "0"),
            str(path),
            str(path / "bin/python"),
            os.path.realpath(_PYTHON),
            (),
            0,
        )

    def definitions(self) -> dict[str, Template]:
        """Return the one template."""
        return {"python": self._built.template}

    def find(self, name: str) -> BuiltTemplate | None:
        """Return the template, if `name` is its name."""
        if name != "python":
            raise NotFound(f"template {name!r} is not defined", remedy="defined: python")
        return self._built

    def build(self, name: str) -> BuiltTemplate:
        """Raise `NotFound`: the template needs no build."""
        raise NotFound(f"template {name!r} cannot be built here", remedy="use python")
