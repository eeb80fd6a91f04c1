"""Unit files as what they say, and programs behind the walls that they ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from cellwall.engine.templates.build import find_uv
from kit.deploy import walls
from kit.unprivileged import SOURCES, OrdinaryUser


def directives(unit: Path) -> dict[str, str]:
    """Return a unit's [Service] section; a key given twice has one value per line."""
    found: dict[str, str] = {}
    section = unit.read_text(encoding="utf-8").partition("[Service]")[2].partition("[Install]")[0]
    for line in section.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


def started(unit: Path, user: OrdinaryUser, *words: str) -> subprocess.Popen[str]:
    """Start a `cellwall` command as a user behind a unit's walls; its output is a pipe."""
    document = {
        "directives": directives(unit),
        "ids": [user.uid, user.gid],
        "readable": sorted({sys.prefix, SOURCES, str(Path(find_uv()).parent)}),
        "writable": [str(user.home)],
        "argv": [sys.executable, "-m", "cellwall.apps.cli.main", *words],
        "environment": user.environment,
    }
    argv = [sys.executable, walls.__file__, json.dumps(document)]
    env = {**os.environ, "PYTHONPATH": SOURCES}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
