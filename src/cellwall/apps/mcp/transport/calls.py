"""Calls: the plain tool calls of one client that are under way, by the client's request ids.

Their JSON is in `direct`, the transport of answers in `stdio` and `http`. The invariant: a call
that its client gave up is cancelled once, and its id is free again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.shared.dispatcher import coerce_request_id

from cellwall.apps.mcp import direct
from cellwall.apps.mcp.protocol import called
from cellwall.apps.mcp.session import ended
from cellwall.apps.mcp.tools import answers
from cellwall.model.errors import CellwallError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from mcp_types import CallToolResult

    from cellwall.apps.mcp.direct import Asked, Spoken
    from cellwall.apps.mcp.session import Session, UnderWay


class DirectCall:
    """One plain tool call under way."""

    def __init__(
        self,
        asked: Asked,
        known: Spoken,
        under_way: UnderWay[CallToolResult],
        server_info: Mapping[str, Any],
    ) -> None:
        self._asked = asked
        self._known = known
        self._under_way = under_way
        self._server_info = server_info
        self._said: bytes | None = None

    @property
    def done(self) -> asyncio.Future[CallToolResult]:
        """Future that is done when there is an answer."""
        return self._under_way.done

    @property
    def is_given_up(self) -> bool:
        """Whether the client has cancelled the call."""
        return self._under_way.is_given_up

    def cancel(self) -> None:
        """Cancel the call."""
        self._under_way.cancel()

    def answer(self) -> bytes:
        """Return the message that answers the call, once it is done."""
        if self._said is None:
            self._said = self._answer()
        return self._said

    def _answer(self) -> bytes:
        if self.is_given_up:
            return direct.refusal(self._asked.request_id, direct.CANCELLED, "Request cancelled")
        result = answers.failure(ended()) if self.done.cancelled() else self.done.result()
        return direct.answer(self._asked.request_id, result, self._known, self._server_info)

    def when_answered(self, send: Callable[[bytes], None]) -> None:
        """Call `send` with the answer when it is there, unless the client cancels the call."""

        def answered(_: object) -> None:
            if not self.is_given_up:
                send(self.answer())

        self.done.add_done_callback(answered)


class Calls:
    """The plain calls of one session; see the module."""

    def __init__(self, session: Session, server_info: Mapping[str, Any]) -> None:
        """`server_info` is the metadata that the newest protocol versions expect in each answer."""
        self._session = session
        self._server_info = server_info
        self._all: dict[int | str, DirectCall] = {}

    def begin(self, message: Any) -> DirectCall | None:  # noqa: ANN401 - JSON
        """Begin the call in a message; None if the SDK has to handle the message."""
        known = self._session.spoken
        asked = direct.plain_call(message, known)
        if asked is None or known is None:
            return None
        key = coerce_request_id(asked.request_id)
        if key in self._all:
            return None
        try:
            under_way = self._session.begin(called(self._session, asked.tool, asked.arguments))
        except CellwallError:
            return None
        call = self._all[key] = DirectCall(asked, known, under_way, self._server_info)
        under_way.done.add_done_callback(partial(self._forget, key))
        return call

    def _forget(self, key: int | str, _: object) -> None:
        del self._all[key]

    def give_up(self, message: Any) -> bool:  # noqa: ANN401 - JSON
        """Cancel the call that a message names; False if it is not one of these."""
        request_id = direct.cancelled(message)
        call = None if request_id is None else self._all.get(coerce_request_id(request_id))
        if call is None:
            return False
        call.cancel()
        return True
