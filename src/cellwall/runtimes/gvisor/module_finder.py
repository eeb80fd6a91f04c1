"""Module finder: provide modules from memory; the first code that runs in a gVisor sandbox.

`snapshot` puts the modules' code in place of the constants below and writes the whole to one file,
which the interpreter runs; imported as a module, which only the snapshot does, this one holds no
code. Standard library only, Python 3.8 and later, and nothing that would have to be imported from a
file. A module has the path, the source and the resources it would have had from its file.
"""

import gc
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
    """Loader of a standard library module with its code in memory, its resources in a file."""

    def __init__(self, name: str, path: str, code: "Code") -> None:
        """`code` is marshalled if it is bytes."""
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> "Any":  # noqa: ANN401 - code
        """Return the code from the snapshot."""
        return _code(self._code)


class BundleLoader:
    """Loader of a guest module; other attributes of the loader come from the bundle."""

    def __init__(self, name: str, path: str, code: "Code") -> None:
        self.name = name
        self.path = path
        self._code = code

    def create_module(self, spec: "ModuleSpec") -> None:
        """Use the default module creation."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the module's code."""
        exec(_code(self._code), module.__dict__)  # noqa: S102 - our own

    def __getattr__(self, name: str) -> "Any":  # noqa: ANN401 - whatever it has
        """Return the attribute of the bundle's own importer."""
        from zipimport import zipimporter

        return getattr(zipimporter(BUNDLE), name)


class Finder:
    """Finder of the modules by name; the rest is read when the first of it is imported."""

    is_shortcut = True
    """Mark for `guest.context.own_modules`: modules found here would be found without it, too, and
    a caller's module of the same name takes precedence."""

    def __init__(self) -> None:
        self._modules = dict(FIRST)
        self._later = frozenset(LATER.split())

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Return the spec of a module held here."""
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
    # Read from the root file system, which no process inside can write to.
    return marshal.loads(code) if isinstance(code, bytes) else code  # noqa: S302


if __name__ == "__main__":
    # A collection in a start finds nothing, and writes to every page that it looks at.
    gc.disable()
    # First in the list: the finders after it would find the same modules, but later.
    sys.meta_path.insert(0, Finder())
    from cellwall.runtimes.gvisor.boot import main

    main()
