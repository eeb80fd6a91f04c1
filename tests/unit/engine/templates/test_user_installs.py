"""What is added to an environment so that its user can install packages beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.engine.templates import user_installs

_UV = """#!/bin/sh
echo "$0" "$@"
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with one package and a stand-in for uv."""
    root = tmp_path / "env"
    packages = root / "lib/python3.11/site-packages"
    described = packages / "alpha-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Name: alpha\nVersion: 1.0\n")
    (described / "RECORD").write_text("alpha.py,,\nalpha-1.0.dist-info/METADATA,,\n")
    (packages / "alpha.py").write_text("")
    (root / "bin").mkdir()
    (root / "bin/uv").write_text(_UV)
    (root / "bin/uv").chmod(0o755)
    user_installs.add(root, packages)
    return root


def _uv(root: Path, home: Path, *words: str, **env: str) -> str:
    done = subprocess.run(
        [root / "bin/uv", *words],
        cwd=home,
        env={"HOME": str(home), "PATH": os.defpath, "VIRTUAL_ENV": str(root), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def test_uv_pip_works_on_the_users_folder(environment: Path, home: Path) -> None:
    real = environment / "libexec/uv"
    said = _uv(environment, home, "pip", "install", "beta")
    assert said == f"{real} pip install --prefix {home}/.local beta"
    site = home / ".local/lib/python3.11/site-packages"
    described = site / "alpha-1.0.dist-info"
    assert (described / "METADATA").read_text().startswith("Name: alpha")
    # Its record names nothing of the template's, or uninstalling it would look for that.
    assert "alpha.py" not in (described / "RECORD").read_text()


def test_a_package_of_the_users_own_is_left_alone(environment: Path, home: Path) -> None:
    site = home / ".local/lib/python3.11/site-packages"
    (site / "alpha-2.0.dist-info").mkdir(parents=True)
    _uv(environment, home, "pip", "list")
    assert [path.name for path in site.iterdir()] == ["alpha-2.0.dist-info"]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "x"),
        ("pip", "install", "--target", "here", "x"),
        ("pip", "install", "--python", "other", "x"),
        ("pip", "compile", "x"),
    ],
)
def test_all_else_is_uvs_own_affair(environment: Path, home: Path, words: tuple[str, ...]) -> None:
    real = environment / "libexec/uv"
    assert _uv(environment, home, *words) == f"{real} {' '.join(words)}"
    own = _uv(environment, home, "pip", "install", "x", VIRTUAL_ENV=str(home / "venv"))
    assert own == f"{real} pip install x"
    (home / ".venv").mkdir()
    assert _uv(environment, home, "pip", "install", "x") == f"{real} pip install x"


def test_apt_says_why_it_cannot(environment: Path) -> None:
    for name in ("apt", "apt-get"):
        done = subprocess.run(
            [environment / "bin" / name, "-y", "install", "x"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 100
        assert "read-only" in done.stderr


def test_the_users_modules_come_first_and_pip_sees_a_user_site(
    environment: Path, home: Path
) -> None:
    packages = environment / "lib/python3.11/site-packages"
    site = subprocess.run(
        [sys.executable, "-c", "import site; print(site.getusersitepackages())"],
        env={"HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(site).mkdir(parents=True)
    (packages / "pip.py").write_text(
        "import site, sys; seen = (site.ENABLE_USER_SITE, sys.prefix == sys.base_prefix)"
    )
    code = f"""
import sys
sys.path.append({str(packages)!r})
import _cellwall_user_site
print(sys.path.index({site!r}) < sys.path.index({str(packages)!r}))
import pip
print(pip.seen)
"""
    for words, expected in (([], "True\n(True, True)\n"), (["-I"], "False")):
        done = subprocess.run(
            [sys.executable, *words, "-c", code],
            env={"HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == expected if not words else "ValueError" in done.stderr
