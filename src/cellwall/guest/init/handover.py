"""Give an idle context its work: the request, and a pipe for its input if it needs one.

`contexts.py` creates a hand-over for each execution that `first_program.py` does not serve, and
tells it what the context answers. It keeps no records. The invariant: until a hand-over is
complete, nothing of the work has run, so a failure before then is a refusal and never an end.
"""

from __future__ import annotations

from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.channel.frames import Header
from cellwall.guest.channel.pipes import Feed
from cellwall.guest.init.context_connections import ContextConnection, open_input

_STEP = "execute"
_INPUT: Header = {"op": "input"}
_BACK: Header = {"op": "idle"}
_MOST_NUMBER = 2**20


class WrongWord(Exception):
    """The context answered about its input with a message that the protocol does not allow."""


class HandOver:
    """One request on its way to one context."""

    def __init__(
        self, name: str, pid: int, connection: ContextConnection, feed: Feed | None
    ) -> None:
        """The context is idle on `connection`; `feed` will be its input. Neither is kept long."""
        self._name = name
        self._pid = pid
        self._connection = connection
        self._feed = feed
        self.failure: Refusal | None = None
        """Why the work has no input; the host is told once the context is idle again."""

    def begin(self, task: Header, source: bytes) -> None:
        """Send the request to the context. Raises Refusal where the kernel does not take it."""
        self._connection.send(task, source)
        if self._connection.error is not None:
            raise self.refusal()
        if self._feed is None:
            # If everything is written, this closes the connection now; else once all of it is.
            self._connection.close_once_sent()

    @property
    def is_complete(self) -> bool:
        """Whether the kernel has taken all of the request, and its input pipe is open."""
        return self._connection.is_sent and (self._feed is None or not self._feed.is_awaited)

    def is_on(self, connection: ContextConnection) -> bool:
        """Whether this hand-over is under way on that connection."""
        return connection is self._connection and not self.is_complete

    def refusal(self) -> Refusal:
        """Return the refusal for a context that is gone before the hand-over was complete."""
        error = self._connection.error
        why = "its process has ended" if error is None else f"it cannot be told: {error.strerror}"
        return Refusal("no_context", f"{_STEP}: context {self._name!r}: {why}")

    def give_input(self, said: Header) -> None:
        """Open the other end of the pipe that the context has made. Raises OSError, WrongWord."""
        feed, number, lack = self._feed, said.get("fd"), said.get("errno")
        if feed is None or not feed.is_awaited or self.failure or not self._connection.is_sent:
            raise WrongWord
        if type(lack) is int and 0 < lack < _MOST_NUMBER:
            raise OSError(lack, "the context can make no pipe")
        if type(number) is not int or not 0 <= number < _MOST_NUMBER:
            raise WrongWord
        feed.open(open_input(self._pid, number))
        self._connection.send(_INPUT)
        self._connection.close_once_sent()

    def take_back(self, error: OSError) -> None:
        """Withdraw work whose input cannot be opened: have the context wait for other work."""
        self.failure = refusal_from(error, f"{_STEP}: context {self._name!r}: its input")
        self._connection.send(_BACK)
