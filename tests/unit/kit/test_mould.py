"""Processes forked from a mould look to a test like those that it starts itself."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from kit.server.mould import Forked, the_mould

_TELLS = """
import os, sys
print(sys.argv[1:], os.environ, os.getcwd(), os.umask(0))
print("aside", file=sys.stderr)
raise SystemExit(7)
"""


def _script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _started(folder: Path, text: str) -> Forked:
    with (folder / "log").open("w", encoding="utf-8") as log:
        return the_mould().start([_script(folder, text)], {}, log.fileno())


def test_it_has_its_own_words_environment_folder_and_streams(tmp_path: Path) -> None:
    mask = os.umask(0o037)
    try:
        done = the_mould().run([_script(tmp_path, _TELLS), "word"], {"A": "b"}, 20)
    finally:
        os.umask(mask)
    told = f"['word'] environ({{'A': 'b'}}) {os.getcwd()} {0o037}\n"
    assert (done.returncode, done.stdout, done.stderr) == (7, told, "aside\n")


def test_each_is_a_process_that_shares_nothing_with_the_next(tmp_path: Path) -> None:
    script = _script(tmp_path, "import sys\nprint(hasattr(sys, 'seen'))\nsys.seen = 1\n")
    assert [the_mould().run([script], {}, 20).stdout for _ in range(2)] == ["False\n"] * 2


def test_its_end_by_a_signal_is_told_and_its_running_is_seen(tmp_path: Path) -> None:
    made = _started(tmp_path, "import signal\nprint('runs', flush=True)\nsignal.pause()\n")
    assert made.stdout is not None
    with made.stdout:
        assert made.stdout.readline() == "runs\n"
        assert made.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            made.wait(0.01)
        made.kill()
        assert (made.wait(20), made.poll(), made.returncode) == (-signal.SIGKILL,) * 3
    with pytest.raises(ProcessLookupError):
        os.kill(made.pid, 0)


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = _script(tmp_path, "import signal\nsignal.pause()\n")
    with pytest.raises(subprocess.TimeoutExpired):
        the_mould().run([script], {}, 0.5)
    pid = the_mould()._process.pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii") == ""
