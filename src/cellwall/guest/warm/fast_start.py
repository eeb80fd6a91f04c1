"""A sandbox's start for one program without a warm interpreter: fork a context at once.

Called by a runtime's boot when a sandbox is wanted immediately. It forks the context and serves its
first program (`first_program.py`) with a fifth of init's modules. Any other request loads the rest
(`init.main`), in the middle of a run if need be. It decides nothing that init does not.

Init stays a process of its own: the first process of a sandbox cannot be killed from inside.
"""

from __future__ import annotations

import gc
import os
import sys

from cellwall.guest.channel.handshake import USUAL_CONTEXTS
from cellwall.guest.init import context_spawn
from cellwall.guest.init.first_program import FirstProgram, serve
from cellwall.guest.process import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any, NoReturn

    from cellwall.guest.channel.init_link import Link


_IDLE_HERE = "_cellwall_user_site"


class Handoff:
    """The state that the rest of init needs to continue."""

    def __init__(
        self, listener: tuple[_socket.socket, str], wakeup_fd: int, program: FirstProgram
    ) -> None:
        """Hold the listening socket, the wake-up descriptor and the state of the first program."""
        self.listener = listener
        self.wakeup_fd = wakeup_fd
        self.program = program


def may_serve(config: dict[str, Any]) -> bool:
    """Report whether this is a sandbox for one Python program."""
    return (
        config.get("purpose") == "program"
        and list(config.get("contexts", ())) == USUAL_CONTEXTS
        and (config.get("language") or "python") == "python"
    )


def begin(channel_fd: int, config: dict[str, Any]) -> Handoff:
    """Serve as init for as long as the first program is all there is. Raises OSError."""
    os.umask(0o022)
    processes.ignore_signals()
    wakeup_fd = processes.await_children()
    listener = context_spawn.listener()
    are_named = bool(config.get("are_callers_named"))
    parent = context_spawn.Parent(listener[1], are_named=are_named, is_hidden=False)
    named = {**config, "context": "main", "language": "python"}
    # The context is a process of its own from here on: modules that it loads now need not be copied
    # for it.
    forked = context_spawn.fork_context(named, dict(os.environ), parent, _become_context, os.fork)
    program = FirstProgram(*forked)
    serve(program, channel_fd, wakeup_fd, listener[0].fileno(), meanwhile=_hide)
    return Handoff(listener, wakeup_fd, program)


def go_on() -> None:
    """Do the steps that `begin` left out, before the rest of init is loaded."""
    import site

    gc.enable()
    site.main()
    processes.become_init()


def _become_context(link: Link, config: dict[str, Any]) -> NoReturn:
    _run_site()
    from cellwall.guest.context import main as context

    gc.freeze()
    gc.enable()
    context.main(link, config)


def _run_site() -> None:
    """Do what `-S` put off: extend `sys.path`, and run the template's .pth files."""
    import site

    # This part of the template does nothing in an isolated interpreter, and takes two listings of
    # directories and a file to find out; `process.user_site` does its work.
    sys.modules[_IDLE_HERE] = sys
    site.main()
    del sys.modules[_IDLE_HERE]


def _hide() -> None:
    """Do what `processes.set_dumpable(False)` does, without the package over the C code."""
    # SECURITY: before anything of a caller's is here. See processes.py.
    import _ctypes

    this: Any = None  # the interpreter itself, as dlopen(3) has it
    prctl = _ctypes.dlsym(_ctypes.dlopen(this, 0), "prctl")
    if _ctypes.call_function(prctl, (processes.PR_SET_DUMPABLE, 0, 0, 0, 0)):
        raise OSError("prctl(PR_SET_DUMPABLE): refused")
