"""pip, uv and npm as they are on this machine, with nothing but a broker to install from."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conftest import require_command
from kit.packages.brokers import Serving

_LONGEST_S = 50


@dataclass(frozen=True)
class Ran:
    """One run of a client. `place` is where it installed to."""

    status: int
    screen: str
    place: Path

    def has(self, module: str) -> bool:
        """Report whether a module of ours is there."""
        return (self.place / f"{module}.py").exists()

    def version(self, module: str) -> str:
        """Return the version that an installed module says."""
        code = f"import {module}; print({module}.version)"
        python = [sys.executable, "-S", "-c", code]
        return subprocess.check_output(
            python, env={"PYTHONPATH": str(self.place)}, text=True
        ).strip()


def _run(command: list[str], place: Path, home: Path, **more: str) -> Ran:
    environ = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        **more,
    }
    # One at a time and each with a home of its own: no cache but the broker's.
    done = subprocess.run(
        command,
        env=environ,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, place)


def _places(broker: Serving) -> tuple[Path, Path]:
    made = Path(tempfile.mkdtemp(prefix="client-", dir=broker.place))
    (made / "home").mkdir()
    return made / "installed", made / "home"


def pip(broker: Serving, *requirements: str) -> Ran:
    """Install with the system's pip."""
    place, home = _places(broker)
    command = [require_command("pip"), "install", "--target", str(place)]
    command += ["--no-cache-dir", "--no-compile", *requirements]
    return _run(
        command,
        place,
        home,
        PIP_INDEX_URL=broker.url("/simple/"),
        PIP_CONFIG_FILE=os.devnull,
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
    )


def uv(broker: Serving, *requirements: str) -> Ran:
    """Install with the uv that this project brings."""
    place, home = _places(broker)
    command = [str(Path(sysconfig.get_path("scripts")) / "uv"), "pip", "install"]
    command += ["--target", str(place), "--python", sys.executable, "--no-config", *requirements]
    return _run(command, place, home, UV_DEFAULT_INDEX=broker.url("/simple/"))


def npm(broker: Serving, *arguments: str, files: Mapping[str, str] | None = None) -> Ran:
    """Run npm in a package that needs nothing, or in one of these files."""
    place, home = _places(broker)
    place.mkdir()
    for name, text in (files or {"package.json": '{"name": "app", "version": "1.0.0"}'}).items():
        (place / name).write_text(text)
    command = [require_command("npm"), "--prefix", str(place), *arguments]
    return _run(
        command,
        place,
        home,
        NPM_CONFIG_REGISTRY=broker.url("/npm/"),
        NPM_CONFIG_REPLACE_REGISTRY_HOST="always",
        NPM_CONFIG_UPDATE_NOTIFIER="false",
        NPM_CONFIG_FUND="false",
    )


PYTHON = {"pip": pip, "uv": uv}
