"""A process beside this one: it makes bytes that come by a pipe, and tells what was wrong.

Used by `layer_bytes` and `layer_stream`, in the jail of `process`: both processes are locked down
alike, and both end with it.
"""

from __future__ import annotations

import fcntl
import os
from typing import Callable, Optional

_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_MOST_SAID = 1000
_WHOLE = "whole"


class Refused(Exception):
    """A layer is not what the specification says, or beyond a bound; `code` says which."""

    def __init__(self, message: str, code: str = "invalid") -> None:
        """`code`: `invalid`, `bound`, `unsupported`, or `ids` for one that is not mapped here."""
        super().__init__(message)
        self.code = code


class Beside:
    """A process beside this one, which writes to a pipe and tells at its end what was wrong."""

    def __init__(self, work: Callable[[int], None]) -> None:
        """`work` writes to a descriptor that it closes; it may raise `Refused`."""
        reading, writing = os.pipe()
        self._verdict, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _end(work, writing, told)
        os.close(writing)
        os.close(told)
        fcntl.fcntl(reading, _F_SETPIPE_SZ, _PIPE_BYTES)
        self.file = open(reading, "rb", buffering=_PIPE_BYTES)  # noqa: SIM115 - closed in `wrong`

    def wrong(self) -> Optional[Refused]:
        """Read nothing more; return what was wrong once the process has ended."""
        self.file.close()
        with open(self._verdict, "rb") as file:
            code, _, said = file.read(_MOST_SAID).decode("utf-8", "replace").partition(" ")
        os.waitpid(self._pid, 0)
        if code == _WHOLE:
            return None
        return Refused(said or "the process that reads a layer was killed", code or "bound")


def _end(work: Callable[[int], None], writing: int, told: int) -> None:
    """Do the work of such a process, and tell how it went; never return."""
    try:
        work(writing)
        said = f"{_WHOLE} "
    except Refused as refusal:
        said = f"{refusal.code} {refusal}"
    except Exception as error:  # noqa: BLE001 - the parent tells it
        said = f"invalid a layer cannot be read: {error}"
    os.write(told, said.encode("utf-8", "replace")[:_MOST_SAID])
    os._exit(0)


def write_all(file: int, data: bytes) -> None:
    """Write to a descriptor, all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
