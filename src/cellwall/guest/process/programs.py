"""Programs about to be executed: how they are found, and which signals are reset for them."""

from __future__ import annotations

import os
import signal

from cellwall.guest.channel.errors import Refusal

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
# Python ignores SIGPIPE and SIGXFSZ, init some more, and the engine's own parent perhaps others
# (nohup does); an exec keeps ignored signals ignored. Two are libc's own, and are not in this set.
SIGNALS_TO_RESET = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))


def find_program(name: str, path: str) -> str:
    """Return the file to execute, by the rules of a shell. Raises Refusal."""
    if "/" in name:
        return name
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    raise Refusal("not_found", f"start {name!r}: no such program in PATH={path}")
