"""A process of the engine's own beside it, with its rights, and a socket to it.

For work that must not be done in the engine: making user namespaces, mounting, unpacking. What the
process does is in the program that is started; what is said on the socket is its user's affair. The
invariant: such a process ends with the engine's end of the socket.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class HelperProcess(NamedTuple):
    """One such process, and our end of its socket."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    def end(self) -> None:
        """Kill it, and with it all that it started; return once it is gone."""
        self.process.kill()
        self.process.wait()  # its end of the socket is closed now, which a waiting thread sees
        self.abandon()

    def abandon(self) -> None:
        """Close our end of the socket; the process ends once no other process has that end."""
        with contextlib.suppress(OSError):
            self.control.close()


def start(bundle: Path, before: Sequence[str] = (), after: Sequence[str] = ()) -> HelperProcess:
    """Start the program in `bundle`; its arguments are `before`, its end of the socket, `after`.

    The socket is SOCK_SEQPACKET, see `jail.protocol.fds`. Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-I", "-S", "-E", str(bundle)]
    try:
        process = subprocess.Popen(
            [*words, *before, str(theirs.fileno()), *after],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return HelperProcess(process, ours)
