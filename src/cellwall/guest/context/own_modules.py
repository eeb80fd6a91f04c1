"""A caller's own modules win over those the fork-server has loaded, as under `python3`.

Used by `program.py` and `cell.py`. Under `python3` a `token.py` beside a program is found before
the standard library's. Here the standard library's is already in `sys.modules`, where an import
would find it. So a module with a namesake in the caller's folder is removed from there, and the
next import searches again.

Modules that CPython itself loads before the first line, or finds before it searches any folder,
have no namesake under `python3` either. Modules of cellwall keep what they have imported, and
import nothing by a name that the caller may have taken (`_load_ours`).
"""

from __future__ import annotations

import _imp
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_ALWAYS_LOADED = frozenset(
    (
        *("__main__", "_frozen_importlib", "_frozen_importlib_external", "builtins", "sys"),
        *("_abc", "_codecs", "_collections_abc", "_io", "_sitebuiltins", "_stat", "_thread"),
        *("_warnings", "_weakref", "abc", "codecs", "encodings", "genericpath", "io", "marshal"),
        *("os", "posix", "posixpath", "site", "stat", "time", "zipimport"),
    )
)
"""Modules that `python3` loads before it looks at a program; a package means all its modules."""
_OURS = "cellwall"
_SUFFIX = ".py"

_left_alone: set[str] = set()
"""Names that were removed before: modules imported under them since then are the caller's."""


def make_room(folder: str, namespace: dict[str, Any] | None = None) -> None:
    """Have imports of modules that lie in `folder` find them there.

    Modules that earlier cells have bound to a name in their `namespace` stay as they are.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return
    found = {name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)}
    found.update(name for name in names if "." not in name)
    if not found.isdisjoint(getattr(sys, "stdlib_module_names", found)):
        _load_ours()  # also where nothing has been loaded ahead
    if found:
        _look_there_first(folder)
    found &= sys.modules.keys()
    found -= _left_alone
    taken = [name for name in found if _is_shadowed(name, folder)]
    if namespace and taken:
        known = {id(thing) for thing in namespace.values()}
        taken = [name for name in taken if id(sys.modules[name]) not in known]
    _left_alone.update(taken)
    _take_out(taken)


class _Theirs:
    """Finder for the caller's folder, ahead of a finder that knows modules without any folder."""

    folder = ""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ANN401  a ModuleSpec, of a module that is not imported for its name
        """Find a module in the folder if `python3` would find it there."""
        if path is not None or _is_found_first(name) or not _is_module(f"{self.folder}/{name}"):
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [self.folder])


_theirs = _Theirs()


def _look_there_first(folder: str) -> None:
    _theirs.folder = folder
    shortcuts = [each for each in sys.meta_path if getattr(each, "is_shortcut", False)]
    if shortcuts and _theirs not in sys.meta_path:
        sys.meta_path.insert(0, _theirs)


def _is_found_first(name: str) -> bool:
    return name in _ALWAYS_LOADED or name in sys.builtin_module_names or _imp.is_frozen(name)


def _is_shadowed(name: str, folder: str) -> bool:
    if _is_found_first(name) or not _is_module(os.path.join(folder, name)):
        return False
    # A module that the caller has imported from there is not imported twice.
    origin = getattr(sys.modules[name], "__file__", None) or ""
    return os.path.dirname(os.path.abspath(origin)) not in _places(folder, name)


def _is_module(path: str) -> bool:
    return os.path.isfile(path + _SUFFIX) or os.path.isfile(os.path.join(path, "__init__.py"))


def _places(folder: str, name: str) -> tuple[str, str]:
    here = os.path.abspath(folder)
    return here, os.path.join(here, name)


def _take_out(names: Iterable[str]) -> None:
    for name in names:
        del sys.modules[name]
        if name != _OURS:  # of cellwall only the name: its modules are running here
            for part in [each for each in sys.modules if each.startswith(name + ".")]:
                del sys.modules[part]


def _load_ours() -> None:
    """Load modules of cellwall whose later import could find the caller's modules instead."""
    from cellwall.guest.context import deep_sources, tools  # noqa: F401  loaded, not used
    from cellwall.guest.display import json_value, mime_bundles, tracebacks  # noqa: F401  loaded only
