"""Find the module, among all that an import loads, that starts a thread or leaves a file open.

Used by `preload.py` while a template's modules are imported, and removed afterwards. It refuses
nothing: it only names the module. The invariant: it finds no module, so imports are the same as
without it.
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
    """An import finder that finds nothing, and counts the threads at each name."""

    def __init__(self) -> None:
        self.threaded = ""
        """The module that was being imported when a second thread appeared."""
        self._begun = ""
        self._left: dict[str, tuple[str, str]] = {}
        """By descriptor: its target, and the module that left it open."""

    def __enter__(self) -> Culprits:
        """Install this finder before every other one."""
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove this finder."""
        sys.meta_path.remove(self)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:  # noqa: ANN401
        """Return None, so that the next finder looks for the module."""
        self.look()
        self._begun = name

    def look(self) -> None:
        """Record the module that was begun last, if there is a new thread now."""
        if not self.threaded and _count(_TASKS) > 1:
            self.threaded = self._begun

    def note_open(self, module: str) -> None:
        """Record the descriptors that are newly open as left by `module`."""
        for fd, target in _open().items():
            if self._left.get(fd, ("", ""))[0] != target:
                self._left[fd] = (target, module)

    def left_open(self) -> tuple[str, str] | None:
        """Return a target that is still open and the module that left it open, or None."""
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
            continue  # the listing's own descriptor
        if int(name) > 2 and not target.startswith(_OURS):
            found[name] = target
    return found
