"""A rehearsal of init in the fork-server: real contexts, real programs, a minimal host.

Called once by `preload.py`. It is no test, and nothing of it remains but what CPython learnt.

An interpreter rewrites its own code as it runs (inline caches, type caches). If that happens once
in the fork-server, all forks share the result; if it happens in the forks, each of them copies the
pages. So there must be enough rounds for all of it to settle, and every change to this process must
be undone.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, NoReturn

from cellwall.guest.channel.channel import HostGone
from cellwall.guest.channel.frames import (
    MAX_EVENT_BODY_BYTES,
    MAX_EVENT_HEADER_BYTES,
    Decoder,
    encode,
)
from cellwall.guest.channel.init_link import Link
from cellwall.guest.context import main as context
from cellwall.guest.context import program
from cellwall.guest.process import exit_watch, libc, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from cellwall.guest.init.main import Init

ROUNDS = 12
"""Number of rounds; CPython 3.11 specialises a function at its eighth call."""

_PATIENCE_S = 30
_PROGRAM = b"import sys\nprint(1)\n"
FILENAME = f"{'../' * 32}dev/null"
"""File name of a rehearsed program: it leads to /dev/null, so that no place is needed or filled."""
_SIGNALS = (signal.SIGINT, *processes.DEFAULT_IN_CHILDREN)


def rehearse(make: Callable[[], Init]) -> None:
    """Have a throw-away init run one program in each of a dozen contexts."""
    _rehearse_init(make, [f"rehearsal-{number}" for number in range(ROUNDS)], "session")


def rehearse_first(make: Callable[[], Init]) -> None:
    """Have a dozen throw-away inits run the first program of a sandbox each."""
    for _ in range(ROUNDS):
        _rehearse_init(make, ["main"], "program")


def _rehearse_init(make: Callable[[], Init], names: list[str], purpose: str) -> None:
    config = {"home": os.getcwd(), "env": dict(os.environ), "contexts": names, "purpose": purpose}
    with _unchanged_process(), writing_nowhere():
        ours, theirs = socket.socketpair()
        host = libc.fork()
        if host == 0:
            theirs.close()
            _be_host(ours, names)
        ours.close()
        with contextlib.suppress(HostGone):
            make().run(theirs.detach(), config)
        with contextlib.suppress(ChildProcessError):  # init reaps every child
            os.waitpid(host, 0)


def rehearse_program(main: Callable[..., Any], rounds: int = ROUNDS) -> None:
    """Run as the context of a program in this very process, a dozen times, up to its exit.

    CPython's specialisation of code that only forks run is lost with them, and each fork writes to
    that code as it begins to specialise it. `main` is `single_program.main`.
    """
    with _unchanged_process(), _stand_ins(), context.StandardStreams():
        for _ in range(rounds):
            with contextlib.suppress(_Left):
                _be_context(main)
        context.forget()


def _be_context(main: Callable[..., Any]) -> None:
    config = {"home": os.getcwd(), "env": {}, "purpose": "single_program", "is_end_foreseen": True}
    header = {"op": "execute", "id": 1, "context": "main", "mode": "program"}
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(encode({**header, "filename": FILENAME, "display": True}, _PROGRAM))
        main("\0", theirs.detach(), config, None)


class _Left(ConnectionError):
    """Stands in for an exit; a context takes it for the end of its init, and exits as well."""


def _stay(_code: int) -> NoReturn:
    raise _Left


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Replace exits, and steps that a process takes only once before it exits.

    CPython specialises the form of a call: so each stand-in of a function without arguments takes
    none either.
    """
    changes: list[tuple[Any, str, Any]] = [
        (os, "_exit", _stay),
        (gc, "freeze", gc.isenabled),
        (atexit, "_run_exitfuncs", gc.isenabled),
        (threading, "_shutdown", _nothing),
    ]
    with _changed([*changes, *_UNSAID]):
        yield


def _kill_nobody(_pid: int, _number: int) -> None:
    return


_UNSAID: list[tuple[Any, str, Any]] = [
    (exit_watch, "_kill", _kill_nobody),
    (program, "NEW_FILE", os.O_WRONLY),
]
"""Changes that keep a rehearsal from telling its parent or leaving a file."""


@contextlib.contextmanager
def writing_nowhere() -> Iterator[None]:
    """Have programs called `FILENAME` written to /dev/null."""
    with _changed([(program, "NEW_FILE", os.O_WRONLY)]):
        yield


@contextlib.contextmanager
def _changed(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, stand_in in changes:
            setattr(owner, name, stand_in)
        yield
    finally:
        for owner, name, found in before:
            setattr(owner, name, found)


def _nothing() -> None:
    return


def rehearse_link() -> None:
    """Have a link send and receive the messages of a context and its init."""
    # A Unix socket that is bound without a name gets an abstract one from the kernel.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen()
    link = Link("\0" + listener.getsockname()[1:].decode("ascii"))
    try:
        for _ in range(ROUNDS):
            link.send({"ev": "idle"})
            line, _address = listener.accept()
            with line:
                line.sendall(encode({"op": "execute", "mode": "program"}, _PROGRAM))
                link.receive()
            link.close()
    finally:
        link.close()
        listener.close()


def _be_host(line: socket.socket, names: list[str]) -> NoReturn:
    """Act as the host in a process of its own: wait for `ready`, run all, hang up."""
    try:
        line.settimeout(_PATIENCE_S)
        frames = _frames(line)
        next(frames)
        for number, name in enumerate(names, 1):
            request = {"op": "execute", "id": number, "context": name, "display": False}
            request.update(mode="program", filename=FILENAME, stdin="none", output_bytes=4096)
            line.sendall(encode(request, _PROGRAM))
        left = len(names)
        while left:
            left -= next(frames) in ("done", "fail")
    finally:
        os._exit(0)


def _frames(line: socket.socket) -> Iterator[object]:
    decoder = Decoder(MAX_EVENT_HEADER_BYTES, MAX_EVENT_BODY_BYTES)
    while data := line.recv(65536):
        for header, _body in decoder.feed(data):
            yield header["ev"]


@contextlib.contextmanager
def _unchanged_process() -> Iterator[None]:
    """Restore signals and descriptors that an init takes and, as it never ends, does not return."""
    before = _descriptors()
    handlers = [(number, signal.getsignal(number)) for number in _SIGNALS]
    wakeup_fd = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in handlers:
            signal.signal(number, handler)
        # Objects first: they close what they own, and must not close a number twice.
        gc.collect()
        for descriptor in _descriptors() - before:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(descriptor)


def _descriptors() -> set[int]:
    found = os.listdir("/proc/self/fd")
    # The listing's own descriptor is in it, and its number is the next that is given out.
    return {int(name) for name in found if os.path.lexists(f"/proc/self/fd/{name}")}
