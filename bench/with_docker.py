"""Run a command beside a Docker daemon: the one there is, or one that lives as long as it.

    PYTHONPATH=tests python bench/with_docker.py COMMAND…

Not the bench: its rows say themselves when there is no daemon to measure. Called by `make bench`.
The invariant: a daemon started here is the tests' (`docker_daemon`), without a network, in one
temporary folder, and it is gone with its containers before this ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

from kit import docker_daemon


def answers(address: str) -> bool:
    """Whether somebody listens at the address of a daemon; one elsewhere is taken at its word."""
    if not address.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as knock, contextlib.suppress(OSError):
        knock.connect(address.removeprefix("unix://"))
        return True
    return False


def main(words: list[str]) -> int:
    """Return the command's exit status."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    missing = docker_daemon.missing()
    if answers(address) or missing:
        if not answers(address):
            print(f"bench: no Docker daemon ({missing}): its rows are left out", file=sys.stderr)
        return subprocess.run(words, check=False).returncode
    # A terminal's ^C reaches the command as well; whoever ends only us must not leave a daemon.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with docker_daemon.running():
        return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
