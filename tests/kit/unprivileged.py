"""A throw-away ordinary user: runs programs of ours under ids that nobody else has.

Not a fixture and not a sandbox: the programs run here *embed* the engine, as an ordinary user's
script does. When the tests themselves run as an ordinary user, that user is taken as it is. The
invariant: the user owns its own home and nothing else, and has no group of its caller's.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import cellwall
from cellwall.engine.templates.build import find_uv
from conftest import require_capability

SOURCES = str(Path(cellwall.__file__).parents[1])
SHARING_ITS_ID = """
import ctypes
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: newuidmap(1) has no power
"""
"""What begins a program whose sandboxes are to have the user's own id, whatever ids it may map."""


@dataclass(slots=True)
class Finished:
    """How a program of the user's ended."""

    code: int
    stdout: str
    stderr: str


def _shut() -> str:
    """The highest folder above our sources or our interpreter that is not everybody's, else ""."""
    needed = (Path(sys.executable), Path(sys.executable).resolve(), Path(cellwall.__file__))
    above = sorted({folder for path in needed for folder in path.parents})
    return next((str(path) for path in above if not path.stat().st_mode & stat.S_IXOTH), "")


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or descends from it; what its parent has left does not."""
    while pid > 1 and pid != os.getpid():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return True  # it has ended
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid == os.getpid()


class OrdinaryUser:
    """A pair of ids with a home; a context manager that removes the home."""

    def __init__(self) -> None:
        """Take ids that are far from accounts and differ from each other.

        Skips the test where such a user cannot read what it is to run.
        """
        drops = os.geteuid() == 0
        shut = _shut() if drops else ""
        reason = f"{shut} is its owner's alone; clone to where all may read, /opt for one"
        require_capability("a clone that ordinary users can read", not shut, reason)
        self.uid = 60_000 + os.getpid() % 4_000 if drops else os.geteuid()
        self.gid = self.uid + 5_000 if drops else os.getegid()
        self.ids: dict[str, Any] = {}
        """Arguments for `subprocess`."""
        if drops:
            self.ids = {"user": self.uid, "group": self.gid, "extra_groups": []}
        self._folder = tempfile.TemporaryDirectory(prefix="cellwall-user-")
        self.home = Path(self._folder.name)
        if drops:
            os.chown(self.home, self.uid, self.gid)
        self._before = {str(pid) for pid in self.processes()} | self._directories()

    def __enter__(self) -> OrdinaryUser:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the home."""
        self._folder.cleanup()  # also what a template has that nobody may write

    @property
    def environment(self) -> dict[str, str]:
        """What the user's programs see."""
        return {
            "HOME": str(self.home),
            "PATH": f"{Path(find_uv()).parent}:/usr/bin:/bin",
            "PYTHONPATH": SOURCES,
            "CELLWALL_STATE_DIR": str(self.home / "state"),
            "LANG": "C.UTF-8",
        }

    def run(
        self, source: str, *arguments: str, python: str = sys.executable, timeout_s: float = 50.0
    ) -> Finished:
        """Run a Python program as the user, in a session of its own."""
        done = subprocess.run(
            [python, "-", *arguments],
            input=source,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.home,
            timeout=timeout_s,
            check=False,
            start_new_session=True,
            **self.ids,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def leftovers(self) -> set[str]:
        """Processes and directories that `run` may have left.

        Not those that were there before, nor what this process has: the user may be our own.
        """
        left = {str(pid) for pid in self.processes() if not _is_ours(pid)}
        return (left | self._directories()) - self._before

    def _directories(self) -> set[str]:
        found = Path(tempfile.gettempdir()).glob("cellwall*")
        return {path.name for path in found if path.lstat().st_uid == self.uid}

    def processes(self) -> set[int]:
        """Processes of the host that run under the user's id."""
        found = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                status = (entry / "status").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            words = next(line for line in status.splitlines() if line.startswith("Uid:")).split()
            if int(words[1]) == self.uid:
                found.add(int(entry.name))
        return found
