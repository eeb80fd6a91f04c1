"""The set-up scripts: shell that parses, and a fetched wheel that is checked by its digest."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from kit.places import ROOT


@pytest.fixture(scope="module")
def fetch_wheel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_wheel", ROOT / "scripts/fetch_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _index(tmp_path: Path, module: ModuleType, *, lie: bool = False) -> str:
    """Make an index directory with two versions of `moss` for this machine; return its address."""
    page = tmp_path / "simple/moss"
    page.mkdir(parents=True)
    links = []
    for version in ("1.10", "1.9"):
        name = f"moss-{version}-py3-none-manylinux_2_17_{module.platform.machine()}.whl"
        with zipfile.ZipFile(page / name, "w") as wheel:
            wheel.writestr("moss.py", version)
        digest = hashlib.sha256(b"other" if lie else (page / name).read_bytes()).hexdigest()
        links.append(f'<a href="{name}#sha256={digest}">{name}</a>')
    links.append('<a href="moss-9.0.tar.gz">source</a><a href="moss-9.0-py3-none-win32.whl">w</a>')
    (page / "index.html").write_text("\n".join(links))
    return (tmp_path / "simple").as_uri()


def test_fetch_takes_the_newest_wheel_for_this_machine(
    fetch_wheel: ModuleType, tmp_path: Path
) -> None:
    path = fetch_wheel.fetch(_index(tmp_path, fetch_wheel), "moss", tmp_path)
    assert path.name.startswith("moss-1.10-")
    with zipfile.ZipFile(path) as wheel:
        assert wheel.read("moss.py") == b"1.10"


def test_fetch_keeps_no_file_that_differs_from_its_digest(
    fetch_wheel: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="not what the index announced"):
        fetch_wheel.fetch(_index(tmp_path, fetch_wheel, lie=True), "moss", tmp_path)
    assert list(tmp_path.glob("*.whl")) == []


@pytest.mark.parametrize(
    ("shell", "script"), [("sh", "scripts/bootstrap"), ("bash", ".ci/run")], ids=["sh", "bash"]
)
def test_script_parses(shell: str, script: str) -> None:
    run = subprocess.run([shell, "-n", ROOT / script], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")
    assert (ROOT / script).stat().st_mode & 0o111 == 0o111
