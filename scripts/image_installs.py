"""Installs and starts inside an image what people do, each as root in a fresh sandbox.

    python scripts/image_installs.py --image debian12 --allow mirror.example.org:80 [NAME …]

The image is Debian 12 with apt, python3, pip, node and npm, whose sources.list names the mirror
that is allowed; pip and npm go through the package broker, to the registries of the operator's
settings. The rows are in `image_installs.toml`. Says for each whether it works, and exits with 1 if
one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from cellwall import CellwallError, Engine

_LIMITS = {
    **{"wall_s": 300, "cpu_s": 300, "memory_mb": 3072, "processes": 400, "open_files": 4096},
    **{"disk_mb": 4096, "inodes": 300_000, "file_mb": 1024},
}
_APT = "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -qq -y"
_INSTALLS = {
    "apt": f"{_APT} --no-install-recommends %s",
    "pip": "PIP_BREAK_SYSTEM_PACKAGES=1 pip install -q %s",
    "npm": "mkdir -p /srv/n && cd /srv/n && npm install --silent %s",
}
_FAILED = "|| { tail -n 20 /tmp/log; exit 9; }"


async def _row(engine: Engine, row: dict[str, str], given: argparse.Namespace) -> str:
    """Return what is wrong, or nothing."""
    network: Any = given.allow if row["from"] == "apt" else "packages"
    install = _INSTALLS[row["from"]] % row["packages"] if row["packages"] else "true"
    sandbox = await engine.create_sandbox(
        image=given.image, user="root", limits=_LIMITS, runtime=given.runtime, network=network
    )
    try:
        line = f"{{ {install}; }} >/tmp/log 2>&1 {_FAILED}\n{row['check']}"
        done = await sandbox.commands.run(["bash", "-c", line])
    finally:
        await sandbox.close()
    lines = done.stdout.strip().splitlines() or [""]
    if row["says"] in lines[-1]:
        return ""
    said = " / ".join([*lines[-6:], *done.stderr.strip().splitlines()[-4:]])
    return f"{done.outcome.verdict} {done.exit_code}: {said}"


async def _all(given: argparse.Namespace) -> list[str]:
    """Return the names of the rows that do not work."""
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["row"]
    engine, failed = Engine(), list[str]()
    try:
        for row in [each for each in rows if not given.names or each["name"] in given.names]:
            began = time.monotonic()
            try:
                wrong = await _row(engine, row, given)
            except CellwallError as error:
                wrong = str(error)
            failed += [row["name"]] if wrong else []
            took = time.monotonic() - began
            word = "FAILED" if wrong else "ok"
            sys.stdout.write(f"{word:7}{took:6.1f} s  {row['name']}  {wrong}\n")
            sys.stdout.flush()
    finally:
        await engine.aclose()
    return failed


def main() -> int:
    """Try the rows that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--image", required=True)
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("--runtime", default="jail")
    parser.add_argument("names", nargs="*", metavar="NAME")
    failed = asyncio.run(_all(parser.parse_args()))
    sys.stdout.write(f"do not work: {', '.join(failed) or 'none'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
