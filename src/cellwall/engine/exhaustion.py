"""Which failures to start a sandbox mean that the host is full, and not that it is unsuited.

Not the bounds that should have refused it before (`admission`, `room`). Called by the engine. The
invariant: a full host is a `CapacityError` with the kernel's own word for what ran out.
"""

from __future__ import annotations

import errno
import os

from cellwall.engine.capacity import Files
from cellwall.engine.room import is_out_of_processes
from cellwall.model.errors import CapacityError, CellwallError, SandboxBroken
from cellwall.runtimes.channel import ChannelLost

_FULL = {
    errno.EMFILE: "descriptors of the server",
    errno.ENFILE: "descriptors of the host",
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
}
_FULL_OF_OURS = {**_FULL, errno.ENOSPC: "disk or inodes", errno.EDQUOT: "disk quota"}
"""Not the jail's: there ENOSPC may be a setting of the kernel's, and no waiting helps."""
_GONE = (ChannelLost, SandboxBroken, FileNotFoundError, ProcessLookupError)
"""What it looks like when a sandbox's first process has ended while we looked at it."""
_DEPTH = 8


Failure = CellwallError | OSError | RuntimeError


def instead_of(error: Failure) -> Failure:
    """Return what a failure to start a sandbox means; most mean what they say."""
    if isinstance(error, CapacityError):
        return error  # whoever noticed it knows the step, too
    word = _word_for(error)
    if word is not None:
        return CapacityError(
            f"start a sandbox: the host is out of {word}",
            retry_after_s=5,
            remedy="wait, or delete sandboxes that are not needed",
        )
    if isinstance(error, ChannelLost):
        return SandboxBroken(f"start a sandbox: it ended before it was ready ({error.message})")
    return error


def _word_for(error: BaseException) -> str | None:
    """Return what ran out, or None."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "threads for the server"
    found: BaseException | None = error
    for _ in range(_DEPTH):
        if found is None:
            return None
        table = _FULL if isinstance(found, CellwallError) else _FULL_OF_OURS
        number = getattr(found, "errno", None)
        if isinstance(number, int) and number in table:
            return f"{table[number]} ({os.strerror(number)})"
        if isinstance(found, _GONE) and is_out_of_processes(Files()):
            return "processes"  # one of its first ones could not fork, and is gone
        found = found.__cause__
    return None
