"""A single run ends without taking the interpreter apart, but not without its hooks."""

from __future__ import annotations

import subprocess
import sys

_ENDS = """
import atexit, threading
from cellwall.apps.cli import main
from cellwall.surface.sync.loop_thread import at_exit

def end(words):
    raise main._Ended(7)

main._command = end
atexit.register(print, "process")
at_exit(lambda: print("threads"))
threading.Thread(target=print, args=["thread"]).start()
main.main()
"""


def test_hooks_of_threads_run_before_those_of_the_process() -> None:
    words = [sys.executable, "-c", _ENDS]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert ended.returncode == 7, ended.stderr
    assert sorted(ended.stdout.split()[:2]) == ["thread", "threads"]
    assert ended.stdout.split()[2:] == ["process"]
