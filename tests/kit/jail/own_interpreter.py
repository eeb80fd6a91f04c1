"""What changes a process for ever is tried in an interpreter of its own.

For the tests of how a fork-server's memory is mapped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

_TIMEOUT_S = 60


def printed(*parts: str) -> str:
    """What a fresh interpreter prints that runs the parts, one after the other."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "".join(map(textwrap.dedent, parts))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
