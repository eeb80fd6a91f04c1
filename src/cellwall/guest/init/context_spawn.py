"""Fork a context from init, so that nothing of init's is left in it.

`contexts.py` uses this module, and so does `fast_start.py` before the rest of init is loaded. It
keeps no records: its caller knows which contexts exist. The invariant: the child never returns from
here.
"""

from __future__ import annotations

# The C module under `socket`: the Python class over it makes enum members of every constant, and a
# fork pays for each page that it writes to.
import _socket
import gc
import os
import sys

from cellwall.guest.channel.init_link import Link
from cellwall.guest.process import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Run = Callable[[Link, dict[str, Any]], Any]

_CONNECTION_FD = 3
"""File descriptor of a new context's first connection; it is closed before caller code runs."""


class Parent:
    """What a context has to know of its init."""

    __slots__ = ("address", "are_named", "is_hidden")

    def __init__(self, address: str, *, are_named: bool, is_hidden: bool = True) -> None:
        """Contexts connect to `address`; with `are_named` they also send their SCM_CREDENTIALS.

        `is_hidden`: init may not be inspected (`processes.confine`), and its forks may not be
        either.
        """
        self.address = address
        self.are_named = are_named
        self.is_hidden = is_hidden


def listener() -> tuple[_socket.socket, str]:
    """Bind and listen for contexts; return a non-blocking socket and its address."""
    # Abstract: no path to clean up or to protect. Random: inits that share a network namespace (the
    # `process` runtime) must not meet.
    address = "\0cellwall-" + os.urandom(16).hex()
    made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    made.setblocking(False)
    made.bind(address)
    made.listen(64)
    return made, address


def fork_context(
    config: dict[str, Any],
    found: dict[str, str],
    parent: Parent,
    run: Run,
    fork: Callable[[], int] = processes.fork_quietly,
) -> tuple[int, int, int, int]:
    """Fork a context; return its pid and our ends of its stdout, stderr and first connection.

    `config` is init's, with the context's name and language; `found` is the environment of this
    process. `run` is called in the child and does not return. Raises OSError.
    """
    opened: list[int] = []
    try:
        opened += os.pipe()
        opened += os.pipe()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        opened += (ours.detach(), theirs.detach())
        pid = fork()
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    stdout_r, stdout_w, stderr_r, stderr_w, connection, their_connection = opened
    if pid == 0:
        _become_context(config, found, parent, run, (stdout_w, stderr_w, their_connection))
    for fd in (stdout_w, stderr_w, their_connection):
        os.close(fd)
    return pid, stdout_r, stderr_r, connection


def _become_context(
    config: dict[str, Any],
    found: dict[str, str],
    parent: Parent,
    run: Run,
    descriptors: tuple[int, int, int],
) -> NoReturn:
    stdout_w, stderr_w, connection = descriptors
    try:
        processes.reset_signals()
        # This makes a group, too. No process can join a session, so the session says which
        # processes belong to this context.
        os.setsid()
        null_r = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_r, 0)
        os.dup2(stdout_w, 1)
        os.dup2(stderr_w, 2)
        os.dup2(connection, _CONNECTION_FD, False)
        # From here on init's Python objects hold descriptor numbers that will be reused, so no such
        # object may be finalised. The caller's frames keep them alive until the _exit below.
        gc.freeze()
        processes.close_from(_CONNECTION_FD + 1)
        if parent.is_hidden:
            processes.set_dumpable(True)
        os.chdir(config["home"])
        if not config.get("is_environment_set"):
            change_environment(found, config["env"])
        run(Link(parent.address, _CONNECTION_FD, is_named=parent.are_named), config)
    except BaseException:  # noqa: BLE001  this is the child's outermost frame
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)


def change_environment(found: dict[str, str], wanted: dict[str, str]) -> None:
    """Change `os.environ`, whose content is `found`, into `wanted`."""
    # Only the difference: a fork-server already has nearly the environment of its sandboxes.
    for name in found:
        if name not in wanted:
            del os.environ[name]
    for name, value in wanted.items():
        if found.get(name) != value:
            os.environ[name] = value
