"""Ledger: which programs a node has begun, in a file that outlives its process.

Written before a program begins, and read once the process is gone, by a task on the same machine:
so the driver knows which of the programs that it had given had begun, and sends the others
elsewhere. It survives the end of the process, not of the machine; there every program that was
given counts as begun.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_FOLDER = "fleet"
_KEPT_S = 86_400.0
"""Seconds for which the ledger of a node stays that did not end cleanly."""


def place(state_dir: Path, name: str) -> Path:
    """Return the file of the node with that name."""
    return state_dir / _FOLDER / f"{name}.begun"


class Ledger:
    """The ledger of one node."""

    def __init__(self, path: Path) -> None:
        """Make the file; its name is taken once. Remove those that no driver can ask for."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in path.parent.glob("*.begun"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > _KEPT_S:
                    old.unlink()
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def begin(self, ticket: str) -> None:
        """Note that a program begins now."""
        os.write(self._fd, f"{ticket}\n".encode("ascii"))

    def withdraw(self, ticket: str) -> None:
        """Note that nothing of it has begun after all."""
        os.write(self._fd, f"-{ticket}\n".encode("ascii"))

    def close(self) -> None:
        """Remove it, at a clean end: the driver has been told everything."""
        os.close(self._fd)
        self._path.unlink(missing_ok=True)


def taken_away(place: str) -> bytes:
    """Return a ledger's content and remove it; what the driver runs on the machine of a lost node.

    Raises OSError if there is none.
    """
    path = Path(place)
    data = path.read_bytes()
    path.unlink()
    return data


def begun(data: bytes) -> set[str]:
    """Return the programs that had begun, by the content of a ledger."""
    lines = data.decode("ascii").split()
    withdrawn = {line[1:] for line in lines if line.startswith("-")}
    return {line for line in lines if not line.startswith("-")} - withdrawn
