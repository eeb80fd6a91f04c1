"""A real PostgreSQL server of our own: a cluster in a temporary directory, on a unix socket.

It refuses to run as root, so root's tests give it to the user that the package brings. Ended with
`pg_ctl`, by the pid in its own directory.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_SETTINGS = (
    "listen_addresses = ''",
    "shared_buffers = 16MB",
    "max_connections = 40",
    "max_wal_size = 64MB",
)
_ANYBODY = "nobody"


def programs() -> Path | None:
    """Return the folder with `initdb` and `pg_ctl` of the newest version, or None."""
    found = Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")
    return max((path.parent for path in found), key=lambda path: path.parent.name, default=None)


@dataclass(slots=True)
class Postgres:
    """A running server."""

    folder: Path
    bin: Path
    user: int | None
    """Whose process it is; None: ours."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, program: str, *arguments: str) -> str:
        """Run one of its programs as its user; raises with what it said."""
        done = subprocess.run(
            [self.bin / program, *arguments],
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=50,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement as the superuser."""
        return self.run(
            "psql", "-h", str(self.folder), "-U", "cellwall", "-tAc", statement, database
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """End it: `fast` rolls back what is open, `immediate` is a crash."""
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-m", mode, "-w", "stop")

    def database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"test{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE template0")
        return f"postgresql+asyncpg://cellwall@/{name}?host={self.folder}"


@contextmanager
def running(bin_folder: Path) -> Iterator[Postgres]:
    """Make a cluster, start its server, end both."""
    folder = Path(tempfile.mkdtemp(prefix="cellwall-pg-"))
    user = pwd.getpwnam(_ANYBODY).pw_uid if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user, user)
    server = Postgres(folder, bin_folder, user)
    try:
        server.run(
            "initdb", "-D", f"{folder}/data", "-U", "cellwall", "-A", "trust", "-E", "UTF8",
            "--no-locale", "--no-sync",
        )  # fmt: skip
        with (folder / "data/postgresql.conf").open("a") as settings:
            settings.write("\n".join((*_SETTINGS, f"unix_socket_directories = '{folder}'\n")))
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder)
