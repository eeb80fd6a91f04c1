"""A child process that writes to a pipe, and reports at its end what was wrong with its input.

Used by `layer_bytes` and `layer_stream`, in the jail of `process`: a child is locked down as its
parent is, and ends with the pid namespace of the jail at the latest.
"""

from __future__ import annotations

import fcntl
import os
from typing import Callable, Optional, Union

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


class ChildProcess:
    """A child process, which writes to a pipe and reports at its end what was wrong."""

    def __init__(self, work: Callable[[int], None]) -> None:
        """`work` writes to a descriptor that it closes; it may raise `Refused`."""
        reading, writing = os.pipe()
        self._report, reported = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _run(work, writing, reported)
        os.close(writing)
        os.close(reported)
        fcntl.fcntl(reading, _F_SETPIPE_SZ, _PIPE_BYTES)
        self.file = open(reading, "rb", buffering=_PIPE_BYTES)  # noqa: SIM115 - closed in `refusal`

    def refusal(self) -> Optional[Refused]:
        """Close the pipe, and return what the process reported, if anything, once it has ended."""
        self.file.close()
        with open(self._report, "rb") as file:
            code, _, said = file.read(_MOST_SAID).decode("utf-8", "replace").partition(" ")
        os.waitpid(self._pid, 0)
        if code == _WHOLE:
            return None
        return Refused(said or "the process that reads a layer was killed", code or "bound")


def _run(work: Callable[[int], None], writing: int, reported: int) -> None:
    """Do the work of a child process, and report how it went; never return."""
    try:
        work(writing)
        said = f"{_WHOLE} "
    except Refused as refusal:
        said = f"{refusal.code} {refusal}"
    except Exception as error:  # noqa: BLE001 - the parent raises it
        said = f"invalid a layer cannot be read: {error}"
    os.write(reported, said.encode("utf-8", "replace")[:_MOST_SAID])
    os._exit(0)


def write_all(file: int, data: Union[bytes, memoryview]) -> None:
    """Write all of `data` to a descriptor."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
