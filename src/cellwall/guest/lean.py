"""A sandbox's start for one program where nobody has warmed an interpreter up: a context at once.

Called by a runtime's boot when the sandbox is wanted now. It forks the context and serves its
first program (`first.py`) with a fifth of init's modules; whatever else is asked for loads the
rest (`init.main`), in the middle of a run if need be. It decides nothing that init does not.

Init stays a process of its own: the first process of a sandbox cannot be killed from inside.
"""

from __future__ import annotations

import os

from cellwall.guest import birth, context, processes
from cellwall.guest.first import USUAL_CONTEXTS, Stretch, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any

class Begun:
    """What the rest of init needs to go on."""

    def __init__(self, listener: tuple[_socket.socket, str], wakeup_fd: int, stretch: Stretch):
        """Hold what was opened."""
        self.listener = listener
        self.wakeup_fd = wakeup_fd
        self.stretch = stretch


def may_serve(config: dict[str, Any]) -> bool:
    """Report whether this is a sandbox for one Python program."""
    return (
        config.get("purpose") == "program"
        and list(config.get("contexts", ())) == USUAL_CONTEXTS
        and (config.get("language") or "python") == "python"
    )


def begin(channel_fd: int, config: dict[str, Any]) -> Begun:
    """Be init for as long as the first program is all there is. Raises OSError."""
    processes.become_init()
    wakeup_fd = processes.await_children()
    listener = birth.listener()
    dialled = birth.Dialled(listener[1], are_named=bool(config.get("are_callers_named")))
    named = {**config, "context": "main", "language": "python"}
    stretch = Stretch(*birth.fork_context(named, dict(os.environ), dialled, context.main))
    serve(stretch, channel_fd, wakeup_fd, listener[0].fileno())
    return Begun(listener, wakeup_fd, stretch)
