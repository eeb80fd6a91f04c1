"""Which failures to start a sandbox mean that the host is full, though they do not say so.

What a shortage is says `model.shortage`; what should have refused it before, `admission` and
`host_headroom`. Called by the engine with what a runtime raised. The invariant: whatever else it is
stays the error that it was.
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
"""What it looks like when a sandbox's first process has ended while we looked at it."""
_DEPTH = 8


Failure = CellwallError | OSError | RuntimeError


def instead_of(error: Failure) -> Failure:
    """Return what a failure to start a sandbox means; most mean what they say."""
    if isinstance(error, CapacityError):
        return error  # whoever noticed it knows the step, too
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
    # The only witness is gone; nothing is counted at the wall it met, which may be anybody's.
    if isinstance(error, _GONE) and is_out_of_processes(Files()):
        return shortage(errno.EAGAIN, _STEP, "one of its first processes is gone")
    number = getattr(error, "errno", None)
    if not isinstance(number, int):
        return None
    # A runtime's own error may be about a setting; an error of the system's is from our files.
    is_ours = not isinstance(error, CellwallError)
    said, is_watching = os.strerror(number), _is_of_the_loop(error)
    return shortage(number, _STEP, said, on_disk=is_ours, is_watching=is_watching)


def _is_of_the_loop(error: BaseException) -> bool:
    """Whether it was raised where an event loop has the kernel watch a descriptor."""
    frames = traceback.extract_tb(error.__traceback__)
    watching = {"add_reader", "_add_reader", "add_writer", "_add_writer", "register", "modify"}
    if not frames:
        return False
    # uvloop shows no frame of its own: then the last one is ours, in the line that asked it.
    last = frames[-1]
    return last.name in watching or "add_reader(" in (last.line or "")
