"""A server that leaks on purpose, a little of each kind for every execution that ends.

Run as a program by the soak's control, never imported. What it leaks ends with it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cellwall.linux.syscalls import mounts
from cellwall.server.executions.job import Job
from kit.server.counting_main import serve

_OBJECTS, _BYTES = 100, 512 * 1024
_kept: list[object] = []
_numbers = itertools.count()
_settle = Job.settle


def _leaking(self: Job) -> None:
    _settle(self)
    _kept.append([[n] for n in range(_OBJECTS)])
    _kept.append(b"x" * _BYTES)
    _kept.append(tempfile.mkstemp())
    if next(_numbers) % 4 == 0:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        argv = ["cat"] if os.geteuid() else ["unshare", "--mount", "--net", "--ipc", "cat"]
        _kept.append(subprocess.Popen(argv, stdin=subprocess.PIPE))
        if not os.geteuid():
            mounts.mount("tmpfs", tempfile.mkdtemp(), "tmpfs", 0, "size=4k")


if __name__ == "__main__":
    Job.settle = _leaking  # type: ignore[method-assign]  # the leak that the soak has to find
    serve()
