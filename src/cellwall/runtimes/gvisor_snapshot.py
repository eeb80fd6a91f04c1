"""Writes down the code of the guest and of what it imports; see `gvisor_image`.

Runs in a template's interpreter on the host, out of the guest bundle, under -I and -S: standard
library only, Python 3.8 and later. Nothing of a caller's, and nothing that a template installed,
is imported here: modules are looked for in the bundle and the standard library only. The
invariant: what is written down is code for this very interpreter, and the path it came from.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import marshal
import sys
from types import CodeType
from typing import Any, List, Optional, Sequence, Tuple

from cellwall.runtimes import gvisor_modules

_IMPORTED = (
    "cellwall.runtimes.gvisor_boot",
    "cellwall.guest.init",
    "cellwall.guest.context",
    "cellwall.guest.preload",
    "cellwall.guest.lean",
    "site",
)
_HEADER = importlib.util.MAGIC_NUMBER + bytes(12)
"""PEP 552: a .pyc that is compared with no source."""

Entry = Tuple[str, str, Optional[bytes]]


def main(arguments: Sequence[str]) -> None:
    """`BUNDLE INSIDE [MODULE …]`: write the image to stdout; INSIDE is where the bundle will be."""
    bundle, inside, *preload = arguments
    for name in _IMPORTED:
        importlib.import_module(name)
    for name in preload:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a package of the template's: its files are read inside, as ever
    entries = {}
    for name, module in sorted(sys.modules.items()):
        entry = _entry(name, module, bundle, inside)
        if entry is not None:
            entries[name] = entry
    sys.stdout.buffer.write(_HEADER + marshal.dumps(_start(inside, entries)))


def _entry(name: str, module: Any, bundle: str, inside: str) -> Optional[Entry]:
    """Path, kind and code of a module; None for one that lies in the interpreter itself."""
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.has_location or name == gvisor_modules.__name__:
        return None
    path = str(spec.origin)
    if path.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
        return path, gvisor_modules.EXTENSION, None
    kind = gvisor_modules.PACKAGE if spec.loader.is_package(name) else gvisor_modules.MODULE
    code = spec.loader.get_code(name)
    if path.startswith(bundle + "/"):
        path = inside + path[len(bundle) :]
    return None if code is None else (path, kind, marshal.dumps(code))


def _start(inside: str, entries: Any) -> CodeType:
    """The code of `gvisor_modules` with the modules in it, in place of what stands for them."""
    found = importlib.util.find_spec(gvisor_modules.__name__)
    code: Any = found.loader.get_code(found.name) if found is not None else None  # type: ignore[union-attr]
    filled: List[Any] = []
    for constant in code.co_consts:
        if constant == gvisor_modules.BUNDLE:
            constant = inside
        elif constant == gvisor_modules.MODULES:
            constant = marshal.dumps(entries)
        filled.append(constant)
    started: CodeType = code.replace(co_consts=tuple(filled), co_name="<module>")
    return started
