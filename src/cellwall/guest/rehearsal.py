"""A rehearsal of init in the fork-server: real contexts, real programs, a host that says little.

Called once by `preload.py`. It is no test, and nothing of it is left but what CPython learnt.

An interpreter rewrites its own code as it runs (inline caches, type caches). Done here once, that
is shared by all forks; done there, every fork copies the pages. So the rounds must be enough for
all of it to settle, and whatever they change of this process must be put back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from typing import TYPE_CHECKING, NoReturn

from cellwall.guest import native
from cellwall.guest.channel import HostGone
from cellwall.guest.frames import (
    MAX_EVENT_BODY_BYTES,
    MAX_EVENT_HEADER_BYTES,
    Decoder,
    encode,
)
from cellwall.guest.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cellwall.guest.init import Init

ROUNDS = 12
"""CPython 3.11 specialises a function at its eighth call."""

_PATIENCE_S = 30
_leave = os._exit
"""Also while this name stands for something else (`ahead`)."""
_PROGRAM = b"import sys\nprint(1)\n"


def rehearse(make: Callable[[], Init]) -> None:
    """Have a throw-away init run one program in each of a dozen contexts."""
    _rehearse_init(make, [f"rehearsal-{number}" for number in range(ROUNDS)], "session")


def rehearse_first(make: Callable[[], Init], rounds: int = ROUNDS) -> None:
    """Have a dozen throw-away inits run the first program of a sandbox each."""
    for _ in range(rounds):
        _rehearse_init(make, ["main"], "program")


def _rehearse_init(make: Callable[[], Init], names: list[str], purpose: str) -> None:
    config = {"home": os.getcwd(), "env": dict(os.environ), "contexts": names, "purpose": purpose}
    with _unchanged_process():
        ours, theirs = socket.socketpair()
        host = native.fork()
        if host == 0:
            theirs.close()
            _be_host(ours, names)
        ours.close()
        with contextlib.suppress(HostGone):
            make().run(theirs.detach(), config)
        with contextlib.suppress(ChildProcessError):  # init reaps whatever ends
            os.waitpid(host, 0)


def rehearse_link() -> None:
    """Have a link, too, say and hear what a context and its init say to each other."""
    # Unix sockets make up an abstract name for who binds without one.
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
    """The other end, in a process of its own: wait for `ready`, run all, hang up."""
    try:
        line.settimeout(_PATIENCE_S)
        frames = _frames(line)
        next(frames)
        for number, name in enumerate(names, 1):
            request = {"op": "execute", "id": number, "context": name, "display": False}
            request.update(mode="program", stdin="none", output_bytes=4096)
            line.sendall(encode(request, _PROGRAM))
        left = len(names)
        while left:
            left -= next(frames) in ("done", "fail")
    finally:
        _leave(0)


def _frames(line: socket.socket) -> Iterator[object]:
    decoder = Decoder(MAX_EVENT_HEADER_BYTES, MAX_EVENT_BODY_BYTES)
    while data := line.recv(65536):
        for header, _body in decoder.feed(data):
            yield header["ev"]


@contextlib.contextmanager
def _unchanged_process() -> Iterator[None]:
    """Put back signals and descriptors that an init takes and, being the last, never returns."""
    before = _descriptors()
    handler = signal.getsignal(signal.SIGCHLD)
    wakeup_fd = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        signal.signal(signal.SIGCHLD, handler)
        # Objects first: they close what they own, and must not close a number twice.
        gc.collect()
        for descriptor in _descriptors() - before:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)


def _descriptors() -> set[int]:
    found = os.listdir("/proc/self/fd")
    # The listing's own descriptor is in it, and its number is the next that is given out.
    return {int(name) for name in found if os.path.lexists(f"/proc/self/fd/{name}")}
