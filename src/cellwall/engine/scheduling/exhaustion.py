"""Exhaustion: recognise failures to start a sandbox whose real cause is a full host.

Called by the engine with the error that a runtime raised. `model.shortage` describes a shortage;
`admission` and `host_headroom` should have refused the sandbox before. The invariant: an error of
any other kind is returned unchanged.
"""

from __future__ import annotations

import errno
import itertools
import os
import traceback
from collections.abc import Iterator

from cellwall.engine.scheduling.capacity import Files
from cellwall.engine.scheduling.host_headroom import is_out_of_processes
from cellwall.model.errors import CapacityError, CellwallError, SandboxBroken
from cellwall.model.shortage import shortage
from cellwall.runtimes.channel.replies import ChannelLost

_STEP = "start a sandbox"
_GONE = (ChannelLost, SandboxBroken, FileNotFoundError, ProcessLookupError)
"""Errors that arise when a sandbox's first process has ended while the engine inspected it."""
_DEPTH = 8


Failure = CellwallError | OSError | RuntimeError


def instead_of(error: Failure) -> Failure:
    """Return the error that a failure to start a sandbox should be reported as; mostly `error`."""
    if isinstance(error, CapacityError):
        return error  # the code that raised it knows the failed step, too
    for found in itertools.islice(_chain(error), _DEPTH):
        short = _shortage(found)
        if short is not None:
            return short
    if isinstance(error, ChannelLost):
        return SandboxBroken(f"{_STEP}: it ended before it was ready ({error.message})")
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _shortage(error: BaseException) -> CapacityError | None:
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return shortage(errno.EAGAIN, _STEP, error)
    # The process that met the limit is gone, and no counter tells which limit it was.
    if isinstance(error, _GONE) and is_out_of_processes(Files()):
        return shortage(errno.EAGAIN, _STEP, "one of its first processes is gone")
    number = getattr(error, "errno", None)
    if not isinstance(number, int):
        return None
    # A runtime's own error may be about a setting; an OSError is from the engine's files.
    is_ours = not isinstance(error, CellwallError)
    said, is_watching = os.strerror(number), _is_of_the_loop(error)
    return shortage(number, _STEP, said, on_disk=is_ours, is_watching=is_watching)


def _is_of_the_loop(error: BaseException) -> bool:
    """Report whether the error was raised while an event loop registered a descriptor."""
    frames = traceback.extract_tb(error.__traceback__)
    watching = {"add_reader", "_add_reader", "add_writer", "_add_writer", "register", "modify"}
    if not frames:
        return False
    # uvloop shows no frame of its own: then the last frame is ours, at the line that called it.
    last = frames[-1]
    return last.name in watching or "add_reader(" in (last.line or "")
