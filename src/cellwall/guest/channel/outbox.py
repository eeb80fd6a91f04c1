"""Events that a context sends while caller code runs: one frame at a time, then hang up.

Used by everything in the context that reports (`display.py`, `program.py`, `cell.py`). It is not
the transport (`init_link.py`) and it decides nothing about content or size.

A frame must leave whole or not at all: signals are blocked while one is being sent, because a
KeyboardInterrupt in the middle would make init take the context for hostile. Only the process that
owns the link may use it: a child that caller code forked sends nothing.
"""

from __future__ import annotations

# The C module under `signal`: the wrapper makes enum members of every mask it returns.
import _signal  # type: ignore[import-not-found]
import os
from _thread import allocate_lock, get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class LinkLike(Protocol):
        """The part of `init_link.Link` that is used here."""

        def send(self, header: dict[str, Any], body: bytes = b"") -> None:
            """Send one frame."""

        def close(self) -> None:
            """Close the connection."""


MAX_BODY_BYTES = 1024 * 1024
"""Maximum bytes of a body from guest to host, design/0002; a larger one would end the sandbox."""

_HELD_BACK: list[int] = [
    _signal.SIGINT,
    _signal.SIGTERM,
    _signal.SIGALRM,
    _signal.SIGVTALRM,
    _signal.SIGPROF,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGCHLD,
]


class Outbox:
    """Sends events of one context process over its link."""

    def __init__(self) -> None:
        self._link: LinkLike | None = None
        self._owner_pid = 0
        self._lock = allocate_lock()
        self._sender = 0

    def open(self, link: LinkLike) -> None:
        """Take the link, and make this process the owner of both."""
        self._link = link
        self._owner_pid = os.getpid()

    def forget(self) -> None:
        """Give the link up, so that the outbox has no owner again."""
        self._link = None
        self._owner_pid = 0

    @property
    def is_ours(self) -> bool:
        """Whether this process is the owner; False in a process that caller code forked."""
        return os.getpid() == self._owner_pid

    def post(self, header: dict[str, Any], body: bytes = b"", *, keep_open: bool = False) -> bool:
        """Send one event; False when it could not be sent (no descriptor left, forked child)."""
        # A signal handler of the caller's may display something while its own thread is sending.
        if not self.is_ours or self._sender == get_ident():
            return False
        previous = _signal.pthread_sigmask(_signal.SIG_BLOCK, _HELD_BACK)
        try:
            with self._lock:
                self._sender = get_ident()
                try:
                    return self._send(header, body, keep_open)
                finally:
                    self._sender = 0
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, previous)

    def _send(self, header: dict[str, Any], body: bytes, keep_open: bool) -> bool:
        link = self._link
        assert link is not None  # noqa: S101  for the type checker only
        try:
            link.send(header, body)
        except (OSError, MemoryError):
            link.close()
            return False
        except BaseException:
            # Half a frame may be out: the next event needs a connection of its own.
            link.close()
            raise
        if not keep_open:
            link.close()
        return True
