"""Snapshot: write out the code of the guest and of its imports; see `guest_image`.

Runs in a template's interpreter on the host, out of the guest bundle, under -I and -S: standard
library only, Python 3.8 and later. Nothing of a caller's, and nothing that a template installed, is
imported here: modules are searched for in the bundle and the standard library only. The invariant:
the output is code for this very interpreter, with the paths it came from.

It imports nothing that the interpreter has not loaded already; otherwise it could not tell what a
start imports.
"""

from __future__ import annotations

import _imp
import marshal
import sys

from cellwall.runtimes.gvisor import module_finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import CodeType
    from typing import Any

    Entry = tuple[str, str, CodeType | None]

_FIRST = (
    *("sitecustomize", "resource", "_ctypes", "cellwall.runtimes.gvisor.boot"),
    *("cellwall.guest.warm.fast_start", "cellwall.guest.context.main"),
)
"""Modules that every start needs, and those needed at the end of every program. A module that
is missing here makes a start read the rest, which is ten times as much."""
_OWN = (module_finder.__name__, __name__)
"""Modules that are there only while the image is written."""
_REST = ("cellwall.guest.init.main", "cellwall.guest.warm.preload")
LENGTH_BYTES = 4


def main(arguments: Sequence[str]) -> None:
    """Run `BUNDLE INSIDE REST LIBRARY [MODULE …]`: write the start's length, the start, the rest.

    INSIDE, REST and LIBRARY are the future paths of the bundle, of the rest and of the standard
    library in the sandbox; that of the library is empty if it is the same as here.
    """
    bundle, inside, place, library, *preload = arguments
    moved = {bundle: inside, _library(): library or _library()}
    known = {name for name in sys.modules if not name.startswith("cellwall")} - {"__future__"}
    first = _entries(_FIRST, known, moved)
    rest = _entries((*_REST, *preload), {*known, *first}, moved)
    values = {
        module_finder.BUNDLE: inside,
        module_finder.REST: place,
        module_finder.FIRST: first,
        module_finder.LATER: " ".join(rest),
    }
    start = marshal.dumps(_start(values))
    later = marshal.dumps(
        {name: (path, kind, marshal.dumps(code)) for name, (path, kind, code) in rest.items()}
    )
    sys.stdout.buffer.write(len(start).to_bytes(LENGTH_BYTES, "big") + start + later)


def _library() -> str:
    """Return the directory of the standard library, by a module that is always loaded."""
    path = str(sys.modules["encodings"].__file__)
    return path.rpartition("/")[0].rpartition("/")[0]


def _entries(names: Iterable[str], known: set[str], moved: Mapping[str, str]) -> dict[str, Entry]:
    """Import `names`; return the entries of the newly loaded modules, except those in `known`."""
    for name in names:
        try:
            __import__(name)
        except ImportError:
            continue  # a package of the template: its files are read inside, as without a snapshot
    found = {}
    for name in sorted(set(sys.modules) - known):
        entry = _entry(name, moved)
        if entry is not None:
            found[name] = entry
    return found


def _entry(name: str, moved: Mapping[str, str]) -> Entry | None:
    """Return path, kind and code of a module; None for a module built into the interpreter."""
    spec: Any = getattr(sys.modules[name], "__spec__", None)
    if spec is None or not spec.has_location or name in _OWN:
        return None
    path = str(spec.origin)
    for here, there in moved.items():
        if path.startswith(here + "/"):
            path = there + path[len(here) :]
    if path.endswith(tuple(_imp.extension_suffixes())):
        return path, module_finder.EXTENSION, None
    kind = module_finder.PACKAGE if spec.loader.is_package(name) else module_finder.MODULE
    if name.partition(".")[0] == "cellwall":
        # Without docstrings: a third of what every start would have to read and keep.
        source = spec.loader.get_source(name)
        place = spec.loader.get_code(name).co_filename
        code = compile(source, place, "exec", dont_inherit=True, optimize=2)
    else:
        code = spec.loader.get_code(name)
    return None if code is None else (path, kind, code)


def _start(values: Mapping[Any, object]) -> CodeType:
    """Return the code of `module_finder` with `values` in place of its placeholder constants."""
    spec: Any = module_finder.__spec__
    code: CodeType = spec.loader.get_code(spec.name)
    filled = [
        values.get(constant, constant) if isinstance(constant, str) else constant
        for constant in code.co_consts
    ]
    return code.replace(co_consts=tuple(filled), co_name="<module>")
