"""The guard ends what it guards when the lease is over, also a process that stands still."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cellwall.fleet.node import guard
from kit.waiting import state_of, wait_until


def boot_ns(after_s: float) -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(after_s * 1e9)


@contextlib.contextmanager
def guarded(lease_s: float) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """A process that does nothing, and its guard."""
    actor = subprocess.Popen(["/bin/sleep", "60"])
    argv = [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(actor.pid)]
    watching = subprocess.Popen(
        [*argv, str(boot_ns(lease_s))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
    )
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline() == guard.READY
        yield actor, watching
    finally:
        for each in (actor, watching):
            each.kill()
            each.wait()
        for stream in (watching.stdin, watching.stdout):
            if stream is not None:
                stream.close()


def test_it_kills_a_process_that_stands_still() -> None:
    with guarded(0.5) as (actor, watching):
        os.kill(actor.pid, signal.SIGSTOP)
        assert actor.wait(20) == -signal.SIGKILL
        assert watching.wait(20) == 0


def test_a_lease_that_is_renewed_lasts() -> None:
    """The control: it is the end of the lease that kills."""
    with guarded(1.0) as (actor, watching):
        assert watching.stdin is not None
        watching.stdin.write(struct.pack(">q", boot_ns(60)))
        watching.stdin.flush()
        over = boot_ns(1.5)
        wait_until(lambda: boot_ns(0) > over, "the end of the first lease")
        assert state_of(actor.pid) == "S"
        assert watching.poll() is None


def test_it_ends_with_its_process_and_with_its_pipe() -> None:
    with guarded(60) as (actor, watching):
        actor.kill()
        assert watching.wait(20) == 0
    with guarded(60) as (actor, watching):
        assert watching.stdin is not None
        watching.stdin.close()
        watching.stdin = None
        assert watching.wait(20) == 0
        assert state_of(actor.pid) == "S"
