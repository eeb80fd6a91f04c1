"""The folder where pip and uv install for the sandbox's user, as a part of `sys.path`.

The template is read-only, and this interpreter is an isolated one, which has no user site of its
own. The folder comes before the template's packages, as with any user site, so that a newer version
of one of them is the one imported. Until something is installed there is no such folder, and
nothing of this is on `sys.path`.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_INNER = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def add() -> bool:
    """Put the folder on `sys.path` if it exists and is not there; whether that changed anything."""
    place = f"{os.environ.get('HOME', '')}/.local/{_INNER}"
    if place in sys.path or not os.path.isdir(place):
        return False
    template = f"{sys.prefix}/{_INNER}"
    index = sys.path.index(template) if template in sys.path else len(sys.path)
    sys.path.insert(index, place)
    sys.path_importer_cache.pop(place, None)  # it may be known as no folder
    return True


def add_when_missed() -> None:
    """Look for the folder again whenever an import finds nothing: it may be new."""
    sys.meta_path.append(_Last())


class _Last:
    """Finder that comes after all others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not add():
            return None
        found: ModuleSpec | None = PathFinder.find_spec(name, None, target)
        return found
