"""Gives out modules from memory: the first code of a gVisor sandbox, and what is imported later.

`gvisor_snapshot` puts the modules' code in place of the constants below and writes the whole down
as one file, which the interpreter runs; imported as a module, which only the snapshot does, this
holds none. Standard library only, Python 3.8 and later, and nothing that would have to be imported
from a file. A module has the path, the source and the resources it would have had from there.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader

BUNDLE = "where the guest bundle lies inside"
MODULES = b"a marshalled dict: name to path, kind and marshalled code"
PACKAGE, MODULE, EXTENSION = "package", "module", "extension"


class Loader(SourceFileLoader):
    """A module of the standard library whose code is at hand; the rest is in its file."""

    def __init__(self, name, path, code):
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname):
        """Return the code that was written down."""
        return marshal.loads(self._code)


class BundleLoader:
    """A module of the guest's; whatever else one asks of it is in the bundle."""

    def __init__(self, name, path, code):
        self.name = name
        self.path = path
        self._code = code

    def create_module(self, spec):
        """As usual."""

    def exec_module(self, module):
        """Run its code."""
        exec(marshal.loads(self._code), module.__dict__)

    def __getattr__(self, name):
        from zipimport import zipimporter

        return getattr(zipimporter(BUNDLE), name)


class Finder:
    """Knows the modules by name."""

    def __init__(self, modules):
        self._modules = modules

    def find_spec(self, name, path=None, target=None):
        """Return the spec of one that is here."""
        entry = self._modules.get(name)
        if entry is None:
            return None
        place, kind, code = entry
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


if __name__ == "__main__":
    sys.path.insert(0, BUNDLE)
    # Before all others: the same modules, only sooner.
    sys.meta_path.insert(0, Finder(marshal.loads(MODULES)))
    from cellwall.runtimes.gvisor_boot import main

    main()
