"""The guest as code: what an interpreter finds in it, and where it says that it came from."""

from __future__ import annotations

import ast
import json
import marshal
import os
import subprocess
import sys
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from cellwall.guest.init import first_program
from cellwall.guest.warm import fast_start
from cellwall.model.errors import HostUnsupported
from cellwall.model.template import BuiltTemplate, Template
from cellwall.runtimes.gvisor import guest_image

_PROBE = """
import marshal, sys
code = marshal.loads(open(sys.argv[1], "rb").read())
__name__ = "loaded"
exec(code)
sys.meta_path.insert(0, Finder())
before = set(sys.modules)
from cellwall.guest.warm import fast_start as lean
light = sorted(set(sys.modules) - before)
from cellwall.guest import drivers
from cellwall.guest.init import main as init
import tarfile, json
print(json.dumps({
    "light": light,
    "drivers": len(drivers.DRIVERS),
    "loader": type(init.__spec__.loader).__name__,
    "file": tarfile.__file__,
    "source": "class TarFile" in tarfile.__loader__.get_source("tarfile"),
}))
"""


def built(preload: tuple[str, ...] = (), python: str = sys.executable) -> BuiltTemplate:
    base = os.path.realpath(python)
    return BuiltTemplate(Template("t", preload=preload), "0" * 32, "/nowhere", python, base, (), 0)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> guest_image.Image:
    state = tmp_path_factory.mktemp("state")
    bundle = guest_image.bundle_in(state)
    return guest_image.build_image(state, built(("csv",)), bundle, str(bundle))


def test_modules_come_from_memory_and_know_their_files(image: guest_image.Image) -> None:
    """The rest is where the start says; here it is told so, in a sandbox it is a path inside."""
    probe = _PROBE.replace("exec(code)", f"exec(code); REST = {str(image.rest)!r}")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", probe, str(image.start)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not {"typing", "json", "ctypes", "re", "enum", "signal", "array"} & set(found["light"])
    assert "cellwall.guest.init.first_program" in found["light"]
    assert found["drivers"] > 3
    assert found["loader"] == "BundleLoader"
    assert found["file"].endswith("/tarfile.py")
    assert found["source"]


def test_start_of_one_program_needs_nothing_of_the_rest(image: guest_image.Image) -> None:
    """The rest is a megabyte and more, whose reading a caller would wait for."""
    code = marshal.loads(image.start.read_bytes())
    (first,) = [each for each in code.co_consts if isinstance(each, dict)]
    later = set(next(c for c in code.co_consts if "tarfile" in str(c).split()).split())
    imported = {name for each in (fast_start, first_program) for name in _imports(each)}
    assert "_ctypes" in imported
    assert not imported & later
    assert {"_ctypes", "cellwall.guest.context.main"} <= set(first)
    assert not set(first) & later


def test_guest_has_no_docstrings(image: guest_image.Image) -> None:
    """What no start reads shall not be in its file."""
    code = marshal.loads(image.start.read_bytes())
    (first,) = [each for each in code.co_consts if isinstance(each, dict)]
    guest: CodeType = first["cellwall.guest.warm.fast_start"][2]
    assert (fast_start.__doc__ or "").splitlines()[0] not in str(guest.co_consts)
    assert guest.co_filename.endswith("fast_start.py")


def _imports(module: ModuleType) -> set[str]:
    """Return what a module imports anywhere, unless it is for the type checker only."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
            found.update(f"{node.module}.{each.name}" for each in node.names)
    return found


def test_image_is_written_once(image: guest_image.Image) -> None:
    before = image.start.stat().st_mtime_ns
    bundle = next(image.start.parent.glob("*.pyz"))
    state = image.start.parent.parent
    assert guest_image.build_image(state, built(("csv",)), bundle, str(bundle)) == image
    assert image.start.stat().st_mtime_ns == before


def test_other_preload_is_another_image(image: guest_image.Image) -> None:
    bundle = next(image.start.parent.glob("*.pyz"))
    state = image.start.parent.parent
    other = guest_image.build_image(state, built(("heapq",)), bundle, str(bundle))
    assert other.start != image.start


def test_changed_standard_library_is_another_image(tmp_path: Path) -> None:
    """Its code is in there. One that was put in its place, and an edit that keeps size and time."""
    source = tmp_path / "lib/python3.11/sub/module.py"
    source.parent.mkdir(parents=True)
    source.write_text("one")
    interpreter = tmp_path / "bin/python3.11"
    interpreter.parent.mkdir()
    interpreter.write_bytes(b"\x7fELF")
    bundle, names = tmp_path / "bundle.pyz", set[str]()

    def name() -> str:
        return guest_image._name(built(python=str(interpreter)), bundle, "")

    for change in (
        lambda: source.write_text("two"),
        lambda: interpreter.write_bytes(b"another"),
        (tmp_path / "lib/python3.11/more.py").touch,
    ):
        names.add(name())
        kept = source.stat()
        change()
        os.utime(source, ns=(kept.st_atime_ns, kept.st_mtime_ns))
        while source.stat().st_ctime_ns == kept.st_ctime_ns:  # some kernels' clocks are coarse
            os.utime(source, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    names.add(name())
    assert len(names) == 4
    (tmp_path / "lib/python3.11/site-packages").mkdir()
    (tmp_path / "lib/python3.11/site-packages/other.py").touch()
    assert name() in names


def test_interpreter_that_fails_is_named(tmp_path: Path) -> None:
    bundle = guest_image.bundle_in(tmp_path)
    with pytest.raises(HostUnsupported, match="image of template t"):
        guest_image.build_image(tmp_path, built(python="/bin/false"), bundle, str(bundle))
