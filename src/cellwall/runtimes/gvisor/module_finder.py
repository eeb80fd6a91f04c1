"""Gives out modules from memory: the first code of a gVisor sandbox, and what is imported later.

`snapshot` puts the modules' code in place of the constants below and writes the whole down
as one file, which the interpreter runs; imported as a module, which only the snapshot does, this
holds none. Standard library only, Python 3.8 and later, and nothing that would have to be imported
from a file. A module has the path, the source and the resources it would have had from there.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any

    Code = CodeType | bytes | None
    Entry = tuple[str, str, Code]

BUNDLE = "where the guest bundle lies inside"
REST = "where the modules lie that only some starts need"
FIRST: "dict[str, Entry]" = "name to path, kind and code of what every start needs"  # type: ignore[assignment]
LATER = "names of what is in the rest"
PACKAGE, MODULE, EXTENSION = "package", "module", "extension"


class Loader(SourceFileLoader):
    """A module of the standard library whose code is at hand; the rest is in its file."""

    def __init__(self, name: str, path: str, code: "Code") -> None:
        """`code` is marshalled if it is bytes."""
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> "Any":  # noqa: ANN401 - code
        """Return the code that was written down."""
        return _code(self._code)


class BundleLoader:
    """A module of the guest's; whatever else one asks of it is in the bundle."""

    def __init__(self, name: str, path: str, code: "Code") -> None:
        """As for `Loader`."""
        self.name = name
        self.path = path
        self._code = code

    def create_module(self, spec: "ModuleSpec") -> None:
        """As usual."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run its code."""
        exec(_code(self._code), module.__dict__)  # noqa: S102 - our own

    def __getattr__(self, name: str) -> "Any":  # noqa: ANN401 - whatever it has
        """Ask the bundle."""
        from zipimport import zipimporter

        return getattr(zipimporter(BUNDLE), name)


class Finder:
    """Knows the modules by name; the rest is read with the first of it that is asked for."""

    is_shortcut = True
    """What it finds would be found without it: `guest.context.own_modules` has the caller's win."""

    def __init__(self) -> None:
        """Hold what every start needs."""
        self._modules = dict(FIRST)
        self._later = frozenset(LATER.split())

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Return the spec of one that is here."""
        if name in self._later:
            self._later = frozenset()
            with open(REST, "rb", 0) as file:
                self._modules.update(marshal.loads(file.read()))  # noqa: S302 - as below
        entry = self._modules.get(name)
        return None if entry is None else _spec(name, *entry)


def _spec(name: str, place: str, kind: str, code: "Code") -> "ModuleSpec":
    loader: Any
    if kind == EXTENSION:
        loader = ExtensionFileLoader(name, place)
    elif place.startswith(BUNDLE):
        loader = BundleLoader(name, place, code)
    else:
        loader = Loader(name, place, code)
    spec = ModuleSpec(name, loader, origin=place, is_package=kind == PACKAGE)
    spec.has_location = True
    if kind == PACKAGE:
        spec.submodule_search_locations = [place.rpartition("/")[0]]
    return spec


def _code(code: "Code") -> "Any":  # noqa: ANN401 - code
    # From the root, which nobody inside can write to.
    return marshal.loads(code) if isinstance(code, bytes) else code  # noqa: S302


if __name__ == "__main__":
    sys.path.append(BUNDLE)
    # Before all others: the same modules, only sooner.
    sys.meta_path.insert(0, Finder())
    from cellwall.runtimes.gvisor.boot import main

    main()
