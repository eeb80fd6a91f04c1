"""chroot(2): root of an image has it, as sshd needs; no other user does, and it leads nowhere.

The probe shuts itself into a directory and breaks out of it, which root of a machine can: the
control does it outside and reads what lies above. Inside the sandbox's root is above.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.arena import Arena
from kit.images.host_tree import APP, ImageArena, arena_behind, host_tree

pytestmark = [pytest.mark.attack, pytest.mark.root]
BREAK_OUT = """
import os
os.makedirs(f"{WORK}/shut/inner", exist_ok=True)
above = os.open("/", os.O_RDONLY)
try:
    os.chroot(f"{WORK}/shut")
except PermissionError:
    raise SystemExit("refused")
os.chdir("/")
print("shut", os.path.exists("/inner"), os.path.exists("/usr"))
os.fchdir(above)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
print("out", os.path.exists("/usr"), os.path.exists(WITNESS))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return host_tree(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", params=["jail", "gvisor", "docker"])
def wall(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(request: pytest.FixtureRequest, wall: str, tree: Path) -> Iterator[ImageArena]:
    arena = arena_behind(request, wall, tree)
    yield arena
    arena.close()


@pytest.fixture
def app(request: pytest.FixtureRequest, wall: str, tree: Path) -> Iterator[ImageArena]:
    arena = arena_behind(request, wall, tree, APP)
    yield arena
    arena.close()


def probe(work: str, witness: Path) -> str:
    return f"WORK, WITNESS = {work!r}, {str(witness)!r}\n{BREAK_OUT}"


def test_root_breaks_out_into_its_sandbox(root: ImageArena, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    witness.touch()
    said = root.do(root.on_image(probe("/tmp", witness)))
    assert said.stdout == "shut True False\nout True False\n", said


def test_control_breaks_out_of_a_directory_of_the_host(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    witness.touch()
    program = probe(str(tmp_path), witness)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout == "shut True False\nout True True\n", done.stderr


def test_others_have_no_chroot(app: ImageArena, tmp_path: Path) -> None:
    said = app.do(app.on_image(probe("/tmp", tmp_path)))
    assert (said.stdout, said.stderr.strip()) == ("", "refused"), said


def test_filter_of_others_has_no_chroot(arena: Arena) -> None:
    """An address that is none: what the kernel would say without the filter is EFAULT."""
    call = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
    call += "print(libc.chroot(ctypes.c_void_p(1)), ctypes.get_errno())"
    assert arena.run(call, timeout=20).stdout.splitlines()[-1] == "-1 1"
