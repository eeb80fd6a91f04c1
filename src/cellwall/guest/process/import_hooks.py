"""Change a module right after it is imported, whenever the caller imports it.

Used by `program.py` (multiprocessing) and `figures.py` (matplotlib). It is no import hook for
anything else: it finds modules exactly as Python would and changes none of the rules.

The finder stands before all others, so it must answer None at once for every other name.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Change = Callable[[ModuleType], None]


def after_import(name: str, change: Change) -> None:
    """Call `change(module)` now if `name` is imported, otherwise as soon as it has been."""
    module = sys.modules.get(name)
    if module is not None:
        change(module)
        return
    sys.meta_path.insert(0, _Finder(name, change))


class _Finder:
    """Finder that notices the import of one module, once."""

    def __init__(self, name: str, change: Change) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = _found(name, path, target)
        if spec is not None and spec.loader is not None:
            _notice_execution(spec.loader, self._change)
        return spec


def _found(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Ask the other finders, as the import system would."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def _notice_execution(loader: Loader, change: Change) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        # The loader belongs to this one module; it is restored so that nothing of this hook stays.
        del loader.exec_module
        execute(module)
        change(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
