"""Servers that keep sessions, on one state directory, and the process that keeps them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from kit.server.crashes import House
from kit.servers import state_of
from kit.waiting import is_alive


@contextlib.contextmanager
def kept(folder: Path, **settings: object) -> Iterator[House]:
    """Servers that come and go on one state directory; their keeper is gone afterwards."""
    made = House(folder, {"keep_sessions": True, "stop_s": 1, **settings})
    try:
        yield made
    finally:
        made.stop()
        with contextlib.suppress(ProcessLookupError):
            if keeper := keeper_of(made):
                os.kill(keeper, signal.SIGKILL)


def keeper_of(house: House) -> int:
    """Return the pid of the keeper, as the kernel lists it; 0 if there is none."""
    words = f"{state_of(house.folder)}/guest/".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = entry.read_bytes()
            if words in text and b"\0session_keeper\0" in text and is_alive(int(entry.parts[2])):
                return int(entry.parts[2])
    return 0
