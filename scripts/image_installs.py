"""Installs and starts what people do as root inside an image, each in a fresh sandbox.

    scripts/image_installs.py --image ./debian12.tar --allow mirror.example.org:80 [NAME …]

The image is Debian with apt, python3 and pip, whose sources.list names the mirror that is allowed;
`--npm-image` is one with node and npm. pip and npm go through the package broker, to the registries
that the operator's settings name. The rows are in `image_installs.toml`, those with `service` start
one. Prints a line for each, and writes a table to `--markdown FILE`; exits with 1 if one fails.
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
    **{"wall_s": 300, "cpu_s": 300, "memory_mb": 3072, "processes": 400},
    **{"disk_mb": 4096, "inodes": 300_000, "file_mb": 1024, "open_files": 4096},
}
_LOGGED = ">/tmp/log 2>&1 || { tail -n 20 /tmp/log; exit 9; }"
_INSTALLS = {
    "apt": "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && "
    "apt-get install -qq -y --no-install-recommends",
    "pip": "PIP_BREAK_SYSTEM_PACKAGES=1 pip install -q",
    "npm": "mkdir -p /srv/n && cd /srv/n && npm install --silent",
}


Row = dict[str, Any]
Found = tuple[Row, float, str]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _row(engine: Engine, row: Row, given: argparse.Namespace) -> str:
    """Return what is wrong, or nothing."""
    network: Any = given.allow if row["from"] == "apt" else "packages"
    install = f"{_INSTALLS[row['from']]} {row['packages']} {_LOGGED}" if row["packages"] else ""
    image = given.npm_image if row["from"] == "npm" and given.npm_image else given.image
    sandbox = await engine.create_sandbox(
        image=image, user="root", limits=_LIMITS, runtime=given.runtime, network=network
    )
    try:
        script = f"{install}\n{row['check']}"
        done = await sandbox.commands.run(["bash", "-c", script], timeout=given.timeout)
    finally:
        await sandbox.close()
    lines = done.stdout.strip().splitlines() or [""]
    if row["says"] in lines[-1]:
        return ""
    said = " / ".join([*lines[-6:], *done.stderr.strip().splitlines()[-4:]])
    return f"{done.outcome.verdict} {done.exit_code}: {said}"


async def _timed(engine: Engine, row: Row, given: argparse.Namespace) -> Found:
    began = time.monotonic()
    try:
        wrong = await _row(engine, row, given)
    except CellwallError as error:
        wrong = str(error)
    took = time.monotonic() - began
    _say(f"{'FAILED' if wrong else 'ok':7}{took:6.1f} s  {row['name']}  {wrong}")
    return row, took, wrong


async def _all(given: argparse.Namespace) -> list[Found]:
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["row"]
    chosen = [row for row in rows if not given.names or row["name"] in given.names]
    if given.services:
        chosen = [row for row in chosen if row.get("service")]
    engine, turns = Engine(), asyncio.Semaphore(given.jobs)

    async def in_turn(row: Row) -> Found:
        async with turns:
            return await _timed(engine, row, given)

    try:
        return await asyncio.gather(*(in_turn(row) for row in chosen))
    finally:
        await engine.aclose()


def _table(found: list[Found]) -> str:
    lines = ["| Name | From | Packages | s | |", "|---|---|---|---:|---|"]
    for row, took, wrong in found:
        said = wrong.replace("|", "\\|")[:200] or "ok"
        packages = row["packages"] or "(of the image)"
        lines.append(f"| {row['name']} | {row['from']} | {packages} | {took:.1f} | {said} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the rows that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--image", required=True)
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("--runtime", default="jail")
    parser.add_argument("--npm-image")
    parser.add_argument("--services", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each row")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    found = asyncio.run(_all(given))
    if given.markdown:
        given.markdown.write_text(_table(found), encoding="utf-8")
    failed = [row["name"] for row, _, wrong in found if wrong]
    names = f"; not: {', '.join(failed)}" if failed else ""
    _say(f"{len(found) - len(failed)} of {len(found)} work{names}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
