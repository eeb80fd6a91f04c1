"""A real PostgreSQL server of our own: a cluster in a temporary directory, on a unix socket.

It refuses to run as root, so root's tests run it as nobody. It is our child and ends with us,
however we end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SETTINGS = (
    "shared_buffers = 16MB",
    "max_connections = 40",
    "max_wal_size = 64MB",
)
_ANYBODY = "nobody"
_START_S = 40.0
_PORT = 5432


def programs() -> Path | None:
    """Return the folder with `initdb` and `postgres` of the newest version, or None."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in found), key=lambda path: path.parent.name, default=None)


@dataclass(slots=True)
class Postgres:
    """A running server."""

    folder: Path
    bin: Path
    user: int | None
    """Whose process it is; None: ours."""
    entering: Sequence[str] = ()
    """Words that run its server on another machine of the test's."""
    port: int = _PORT
    _process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def _place(self) -> dict[str, Any]:
        """Return where and as whom its programs run."""
        return {
            "user": self.user,
            "group": self.user,
            "extra_groups": None if self.user is None else [],
            "cwd": self.folder,
            "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PGPORT": str(self.port)},
        }

    def run(self, program: str, *arguments: str) -> str:
        """Run one of its programs as its user; raises with what it said."""
        done = subprocess.run(
            [self.bin / program, *arguments],
            **self._place(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=50,
            encoding="utf-8",
        )
        said = str(done.stdout)
        assert done.returncode == 0, said
        return said

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement as the superuser."""
        return self.run(
            "psql", "-h", str(self.folder), "-U", "cellwall", "-tAc", statement, database
        )

    def start(self) -> None:
        """Start it and wait until it answers. It ends with the thread that calls this."""
        place = self._place()
        words = ["setpriv", "--pdeathsig", "QUIT"]
        if self.entering:  # as root, who alone may
            words += [f"--reuid={place.pop('user')}", f"--regid={place.pop('group')}"]
            words += ["--clear-groups"]
            del place["extra_groups"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.entering, *words, self.bin / "postgres", "-D", "data"],
                **place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + _START_S
        while not self._is_ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
            is_alive = self._process.returncode is None and time.monotonic() < until
            assert is_alive, (self.folder / "log").read_text()

    def _is_ready(self) -> bool:
        ready = [str(self.bin / "pg_isready"), "-q", "-h", str(self.folder), "-t", "1"]
        return subprocess.run(ready, **self._place(), check=False, timeout=50).returncode == 0

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: `SIGINT` rolls back what is open, `SIGQUIT` is a crash."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(50)

    @property
    def pid(self) -> int:
        """The server's first process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether it has ended."""
        return self._process is None or self._process.poll() is not None

    def database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"test{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE template0")
        return f"postgresql+asyncpg://cellwall@/{name}?host={self.folder}"


@contextmanager
def running(
    bin_folder: Path, entering: Sequence[str] = (), listen: str = "", port: int = _PORT
) -> Iterator[Postgres]:
    """Make a cluster, start its server, end both.

    `entering`: words that run it on another machine; `listen`: its address there, at which roles
    have to say their passwords, with `port`.
    """
    folder = Path(tempfile.mkdtemp(prefix="cellwall-pg-"))
    user = pwd.getpwnam(_ANYBODY).pw_uid if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user, user)
    server = Postgres(folder, bin_folder, user, entering, port)
    try:
        server.run(
            "initdb", "-D", f"{folder}/data", "-U", "cellwall", "-A", "trust", "-E", "UTF8",
            "--no-locale", "--no-sync",
        )  # fmt: skip
        with (folder / "data/postgresql.conf").open("a") as settings:
            settings.write("\n".join((*_SETTINGS, f"unix_socket_directories = '{folder}'\n")))
            settings.write(f"listen_addresses = '{listen}'\n")
        with (folder / "data/pg_hba.conf").open("a") as callers:
            callers.write("host all all all scram-sha-256\n")
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder)


@contextmanager
def another(
    entering: Sequence[str] = (), listen: str = "", port: int = _PORT
) -> Iterator[Postgres]:
    """Run a server that a test may stop or kill, where there is PostgreSQL; as `running`."""
    found = programs()
    assert found is not None
    with running(found, entering, listen, port) as made:
        yield made
