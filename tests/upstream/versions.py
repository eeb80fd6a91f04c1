"""`make versions`: releases of E2B's SDKs, oldest to newest, against the door; some minutes.

To be run by a schedule: a release that came since the last time is found by --newest, which asks
the package registries. Each release does what `clients/basic` does. The exit code is 0 only if all
of them work.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kit.server.e2b_doors import e2b_server
from upstream.suites import called, environment

PYTHON = (
    "2.8.0", "2.12.2", "2.15.3", "2.20.3", "2.25.1", "2.29.6", "2.34.0", "2.40.0", "2.45.1",
    "2.50.0", "2.55.1", "2.63.0",
)  # fmt: skip
"""Releases of `e2b`, each with the newest `e2b-code-interpreter` that takes it."""
BY_NAME = ("2.8.0", "2.12.2", "2.15.3", "2.20.3", "2.25.1")
"""Releases whose code interpreter asks a name of the host, whatever E2B_SANDBOX_URL says."""
JAVASCRIPT = (
    "2.8.4",
    "2.12.1",
    "2.18.0",
    "2.24.0",
    "2.28.2",
    "2.33.1",
    "2.38.3",
    "2.46.1",
    "2.51.0",
)
"""Releases of `e2b`, beside the newest `@e2b/code-interpreter`, which brings one of its own."""
_HERE = Path(__file__).parents[2]
_FOLDER = _HERE / ".tools/upstream/versions"
_CLIENTS = Path(__file__).with_name("clients")
_CLIENT_S = 120

Client = Callable[[str, Mapping[str, str]], "subprocess.CompletedProcess[str]"]


def _python(version: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    folder = _FOLDER / f"python-{version}"
    uv, python = str(_HERE / ".tools/uv"), folder / "bin/python"
    called([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
    wanted = "e2b" if version == "newest" else f"e2b=={version}"
    called([uv, "pip", "install", "--quiet", "--python", python, wanted, "e2b-code-interpreter"])
    parts = ["plain"] if version in BY_NAME else ["plain", "interpreter"]
    return _run([str(python), str(_CLIENTS / "basic.py"), *parts], variables)


def _javascript(version: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    folder = _FOLDER / f"javascript-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = "e2b@latest" if version == "newest" else f"e2b@{version}"
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder]
    called([*install, wanted, "@e2b/code-interpreter"])
    path = {"NODE_PATH": str(folder / "node_modules")}
    command = ["node", str(_CLIENTS / "basic.cjs"), "plain", "interpreter"]
    return _run(command, {**variables, **path})


def _run(command: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=_CLIENT_S,
        check=False,
    )


def _failed(name: str, client: Client, versions: Iterable[str], to: Mapping[str, str]) -> int:
    failed = 0
    for version in versions:
        done = client(version, to)
        is_good = (done.returncode, done.stdout) == (0, "done\n")
        print(f"{name} {version}: {'works' if is_good else 'FAILED'}", flush=True)
        if not is_good:
            failed += 1
            print(done.stdout[-2000:] + done.stderr[-4000:], flush=True)
    return failed


def main() -> int:
    """Try every release."""
    parser = argparse.ArgumentParser(prog="versions", description=__doc__)
    parser.add_argument("--newest", action="store_true", help="only the newest there are")
    is_newest = parser.parse_args().newest
    with e2b_server() as server:
        to = server.variables()
        failed = _failed("Python", _python, ["newest"] if is_newest else PYTHON, to)
        failed += _failed("JavaScript", _javascript, ["newest"] if is_newest else JAVASCRIPT, to)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
