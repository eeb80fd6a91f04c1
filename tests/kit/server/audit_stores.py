"""Stores with an audit in them, of both kinds: kept by a server, copied and spoiled by a test.

Spoiling is plain SQL, as somebody writes it who has the database; what the two kinds call
differently is replaced here.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kit.server.mould import the_mould

if TYPE_CHECKING:
    from kit.postgres_server import Postgres

_IN_POSTGRES = {
    "replace(record, 'alice', 'mallo')": (
        "convert_to(replace(convert_from(record, 'UTF8'), 'alice', 'mallo'), 'UTF8')"
    ),
    "hex(hash)": "encode(hash, 'hex')",
}


def cellwall(folder: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    """Run `cellwall audit ARGV` with that state directory."""
    environ = {**os.environ, "CELLWALL_STATE_DIR": str(folder)}
    words = ["-m", "cellwall.apps.cli.main", "audit", *map(str, argv)]
    return the_mould().run(words, environ, 50)


@dataclass(frozen=True)
class Kept:
    """A store, the state directory beside it and the anchors of its chain."""

    folder: Path
    anchors: Path
    postgres: Postgres | None
    url: str

    def cellwall(self, *argv: object) -> subprocess.CompletedProcess[str]:
        """Run `cellwall audit ARGV` on it."""
        return cellwall(self.folder, *argv, "--store", self.url)

    def copy(self, folder: Path) -> Kept:
        """Return a copy that may be spoiled."""
        folder.mkdir(exist_ok=True)
        if self.postgres is not None:
            url = self.postgres.database()
            names = [each.partition("@/")[2].partition("?")[0] for each in (self.url, url)]
            self.postgres.sql(f"DROP DATABASE {names[1]}")
            self.postgres.sql(f"CREATE DATABASE {names[1]} TEMPLATE {names[0]}")
            return replace(self, folder=folder, url=url)
        target = folder / "cellwall.db"
        source = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        made = sqlite3.connect(target)
        source.backup(made)
        source.close()
        made.close()
        return replace(self, folder=folder, url=f"sqlite:///{target}")

    def sql(self, script: str) -> str:
        """Run statements; what the last one selected, as one text."""
        if self.postgres is not None:
            for ours, theirs in _IN_POSTGRES.items():
                script = script.replace(ours, theirs)
            name = self.url.partition("@/")[2].partition("?")[0]
            return self.postgres.sql(script, name).strip()
        base = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            found: list[tuple[object, ...]] = []
            for each in filter(None, script.split(";")):
                found = base.execute(each).fetchall()
            return str(found[0][0]) if found else ""
        finally:
            base.close()

    def blob(self, data: bytes) -> str:
        """Return bytes as SQL."""
        return f"X'{data.hex()}'" if self.postgres is None else f"'\\x{data.hex()}'::bytea"

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)
