"""Asks a server that runs `counting_main` what objects it holds."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from kit.servers import Server, configuration, start

_ENTRY = str(Path(__file__).with_name("counting_main.py"))
_ANSWER_S = 30.0


class Counted:
    """A server and its counts."""

    def __init__(self, server: Server, path: Path) -> None:
        """`path` is where it writes them, in the folder of its state, temp files and log."""
        self.server = server
        self.folder = path.parent
        self._path = path
        self._asked = 0

    def objects(self) -> Counter[str]:
        """Return how many objects of each type it holds, by the type's full name."""
        self._asked += 1
        path = self._path.with_name(f"{self._path.name}.{self._asked}")
        os.kill(self.server.process.pid, signal.SIGUSR2)
        deadline = time.monotonic() + _ANSWER_S
        while not path.exists():
            if time.monotonic() > deadline or self.server.process.poll() is not None:
                raise AssertionError(f"no counts: {self.server.log.read_text()[-2000:]}")
            time.sleep(0.02)
        found: Counter[str] = Counter(json.loads(path.read_text(encoding="utf-8")))
        path.unlink()
        return found


@contextlib.contextmanager
def counted(
    environ: Mapping[str, str] | None = None, entry: str = _ENTRY, **settings: object
) -> Iterator[Counted]:
    """Run one of these settings in a folder of its own, which is its temp directory as well."""
    folder = Path(tempfile.mkdtemp())
    temp = folder / "tmp"
    temp.mkdir()
    path = folder / "counts"
    own = {"COUNTS_FILE": str(path), "TMPDIR": str(temp), **(environ or {})}
    try:
        config = configuration(**settings)
        made = start(
            folder, "--port", "0", config=config, environ=own, entry=(entry,), is_forked=False
        )
        try:
            yield Counted(made, path)
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
