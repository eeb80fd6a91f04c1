"""Our own stdin, stdout and stderr, whatever the caller made of them.

Called by `main` before a command opens anything. Not what is written to them (`terminal`). The
invariants: descriptors 0, 1 and 2 are taken from then on, so that no file of ours gets such a
number; and where the kernel does not let us read or write, the command ends with an error that
names the stream: a `UsageError`, or `BrokenPipeError` if our reader went away.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from typing import TextIO

    from typing_extensions import Buffer

_NAMES = ("stdin", "stdout", "stderr")
# What stands in for a closed one. Input and output fail as closed ones do, once they are used; what
# is said on a closed stderr is lost, as with any program.
_STAND_IN = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)


def take_over() -> None:
    """Hold all three, and have errors of the first two named."""
    for number, flags in enumerate(_STAND_IN):
        _hold(number, flags)
    # Bytes that are no UTF-8 reach the reader, who knows what they were to be.
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Source()), "utf-8", "surrogateescape")
    out: TextIO | None = sys.stdout  # None if it was closed
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Sink()),
        "utf-8" if out is None else out.encoding,
        "replace" if out is None else out.errors,
        line_buffering=os.isatty(1),
    )
    if sys.stderr is None:
        unheard = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(unheard, "utf-8", "backslashreplace", line_buffering=True)


def leave() -> None:
    """Have Python's own end find nothing to complain about: our status is settled."""
    with suppress(OSError, UsageError):
        sys.stdout.flush()
    try:
        sys.stderr.flush()
    except OSError:
        _silence(2)


def check_usable(number: int) -> None:
    """Raise `UsageError` unless stdin can be read, or an output written, as far as one can tell."""
    wrong = os.O_RDONLY if number else os.O_WRONLY
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == wrong:
        raise UsageError(
            f"{_NAMES[number]}: it is closed, or open the wrong way",
            remedy=f"give the command a {_NAMES[number]}",
        )


def failure(number: int, error: OSError) -> UsageError | BrokenPipeError:
    """Return what to raise for an error of one of the three."""
    if isinstance(error, BrokenPipeError):
        return BrokenPipeError()  # without its number: the command line's library has ideas of it
    step = "write" if number else "read"
    return UsageError(
        f"{_NAMES[number]}: {step}: {error.strerror}",
        remedy=f"give the command a {_NAMES[number]} that can be {'written' if number else 'read'}",
    )


def _hold(number: int, flags: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, flags)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)  # as those that we are given


def _silence(number: int) -> None:
    """What is still buffered goes nowhere; Python would fail over it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, number)
    os.close(nowhere)


class _Source(io.FileIO):
    """Our stdin."""

    def __init__(self) -> None:
        super().__init__(0, "r", closefd=False)

    def readinto(self, buffer: Buffer, /) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise failure(0, error) from None

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise failure(0, error) from None


class _Sink(io.FileIO):
    """Our stdout."""

    def __init__(self) -> None:
        super().__init__(1, "w", closefd=False)

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _silence(1)
            raise failure(1, error) from None
