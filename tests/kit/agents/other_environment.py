"""Environments beside our own: suites of other people, with the plugins of pytest they bring.

One for each dependency group of `pyproject.toml` that is asked for, below `.tools`, made by uv from
the configured index and kept until the group changes. The invariant: nothing of it is ever
installed into the environment that the other tests run in.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cellwall.engine.templates.package_index import uv_variables
from conftest import require_capability
from kit.places import ROOT

_PLACE = ROOT / ".tools" / "suites"
_STEERING = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT")


def python_of(group: str, *extras: str) -> Path:
    """Return the interpreter of an environment with that group and cellwall with those extras.

    Skips where packages cannot be had.
    """
    place = _PLACE / group
    _PLACE.mkdir(parents=True, exist_ok=True)
    with Path(f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers may want it at once
        stamp = place / "made-of"
        wanted = fingerprint(group, extras)
        if not stamp.is_file() or stamp.read_text() != wanted:
            _make(place, group, extras)
            stamp.write_text(wanted)
    return place / "bin" / "python"


def run_suite(
    python: Path,
    suite: Path,
    place: Path,
    *options: str,
    env: Mapping[str, str],
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run a suite, in `place`, by the pytest of such an environment.

    It takes no configuration of this project: neither its conftest nor CI's share of the tests.
    `env` is added to this process's environment; `timeout` is in seconds.
    """
    words: list[str | Path] = [python, "-m", "pytest", suite, "-q", "-c", os.devnull]
    words += ["--noconftest", "-p", "no:cacheprovider", "--tb=short", *options]
    return subprocess.run(
        words,
        cwd=place,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def fingerprint(group: str, extras: tuple[str, ...]) -> str:
    """Return what changes with the packages of an environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    packages = [project["project"]["dependencies"], project["dependency-groups"][group]]
    packages += [optional[extra] for extra in extras]
    return hashlib.sha256(repr((sys.version, packages)).encode()).hexdigest()


def _make(place: Path, group: str, extras: tuple[str, ...]) -> None:
    uv = shutil.which("uv") or str(ROOT / ".tools" / "uv")
    if not Path(uv).is_file():
        from uv import find_uv_bin

        uv = str(find_uv_bin())
    failed = _run(
        [uv, "venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, place]
    )
    what = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    install: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        place / "bin" / "python",
    ]
    packages = ["--editable", what, "--group", f"{ROOT / 'pyproject.toml'}:{group}"]
    failed = failed or _run([*install, *packages])
    require_capability(f"packages of {group}", not failed, failed)


def _run(argv: list[str | Path]) -> str:
    """Run a step; return what it said if it failed."""
    env = {name: value for name, value in os.environ.items() if name not in _STEERING}
    env |= uv_variables(env) | {"UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=240
    )
    return "" if done.returncode == 0 else f"{argv[1]}: {done.stderr[-500:]}"
