"""Which module, of all that an import pulls in, starts a thread or leaves something open.

Used by `preload.py` while a template's modules are imported, and out of the way afterwards. It
refuses nothing: it only knows whom to name. The invariant: it finds no module, so imports are what
they are without it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_TASKS, _OPEN = "/proc/self/task", "/proc/self/fd"
_OURS = "/proc/"


class Culprits:
    """A finder that finds nothing, and looks at each name how many threads there are."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.threaded = ""
        """The module that was being imported when there was a second thread."""
        self._begun = ""
        self._left: dict[str, tuple[str, str]] = {}
        """By descriptor: what it leads to, and the module that left it open."""

    def __enter__(self) -> Culprits:
        """Be asked before every other finder."""
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        """Be gone."""
        sys.meta_path.remove(self)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:  # noqa: ANN401
        """None: whoever comes after this one looks for it."""
        self.look()
        self._begun = name

    def look(self) -> None:
        """Name the module that was begun last, if there is a thread now that was not before."""
        if not self.threaded and _count(_TASKS) > 1:
            self.threaded = self._begun

    def note_open(self, module: str) -> None:
        """Remember what is open now and was not before, as left by `module`."""
        for fd, target in _open().items():
            if self._left.get(fd, ("", ""))[0] != target:
                self._left[fd] = (target, module)

    def left_open(self) -> tuple[str, str] | None:
        """What is still open, and the module that left it; None if nothing is."""
        still = _open()
        for fd, (target, module) in self._left.items():
            if module and still.get(fd) == target:
                return target, module
        return None


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 1


def _open() -> dict[str, str]:
    found = {}
    try:
        names = os.listdir(_OPEN)
    except OSError:
        return {}
    for name in names:
        try:
            target = os.readlink(f"{_OPEN}/{name}")
        except OSError:
            continue  # the listing's own
        if int(name) > 2 and not target.startswith(_OURS):
            found[name] = target
    return found
