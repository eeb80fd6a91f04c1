"""One request at one node: its bytes go there, the answer's come back, with the slower side's pace.

Made by `exchange`, which decides where, and what a loss means. The invariant: once a byte of an
answer was passed on, that node's end is the answer's end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from cellwall.cluster.gateway.wire.heads import (
    LAST_CHUNK,
    chunk,
    framing_for,
    response_bytes,
    switching_bytes,
)
from cellwall.server.core.errors import LACKS

if TYPE_CHECKING:
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import ResponseHead
    from cellwall.cluster.gateway.wire.node_link import NodeLink

End = Literal["whole", "full", "refused", "needs", "lacking", "lost", "cut", "gone"]
"""`whole`: the answer was passed on; `full`: the node has no room, and nothing was passed on;
`refused`: the node has no room, and that is the client's answer; `needs`: it asks for secrets, and
nothing was passed on; `lacking`: what the request names is not on the node, and nothing was passed;
`lost`: the connection ended before an answer began; `cut`: it ended in the middle of one, and the
client was cut off; `gone`: the client has left."""

NEEDS = 428
"""Status by which a node asks for secrets, in answers to new work alone."""
_FULL = b'"code":"capacity"'
_LACKS = LACKS.encode()
_LACKING = frozenset({400, 404})
"""Statuses of refusals that may say what a node lacks."""
_REFUSAL_BYTES = 64 * 1024


class Passage:
    """See the module."""

    __slots__ = (
        "_client", "_has_begun", "_held", "_in_chunks", "_is_new", "_link", "_may_ask",
        "_may_lead_away", "_may_turn_away", "_refusal", "_refused", "end", "is_tunnel", "lacks",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        client: ClientLink,
        link: NodeLink,
        *,
        is_new: bool,
        may_turn_away: bool,
        may_ask: bool = False,
        may_lead_away: bool = True,
    ) -> None:
        """`is_new`: a node may have no room for it; `may_turn_away`: that is not the answer.

        `may_ask`: nor is one that asks for secrets. `may_lead_away`: a redirect says where to;
        clients that open WebSockets may go there with their key.
        """
        self._may_lead_away = may_lead_away
        self._may_ask = may_ask
        self._client = client
        self._link = link
        self._is_new = is_new
        self._may_turn_away = may_turn_away
        self._refusal: ResponseHead | None = None
        self._refused = bytearray()
        self._in_chunks = False
        self._held = b""
        """The head, until the body's first piece: together they are one system call."""
        self._has_begun = False
        self.is_tunnel = False
        self.status = 0
        """Status of the answer that was passed on; 0: none was."""
        self.lacks = ""
        """What the node lacks that the request names; empty: nothing."""
        self.end: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    @property
    def is_success(self) -> bool:
        """Whether the answer that was passed on is one."""
        return self.status == 200

    @property
    def refused(self) -> bytes:
        """The answer that was not passed on, as far as it came."""
        return bytes(self._refused)

    # -- to the node -----------------------------------------------------------------------

    def ask(self, head: bytes, length: int | None, *, has_answer_body: bool) -> None:
        """Send the head of the request; the parameters are those of `NodeLink.ask`."""
        self._link.ask(self, head, length, has_answer_body=has_answer_body)

    def send(self, data: bytes) -> None:
        """Pass a piece of the request on; its client waits while the node does not take more."""
        self._link.send(data)
        if self._link.is_full:
            self._client.hold()

    def whole(self) -> None:
        """Note that the request is whole."""
        self._link.end()

    def hold(self) -> None:
        """Read no more of the answer: the client is slow."""
        self._link.hold()

    def go_on(self) -> None:
        """Read again."""
        self._link.go_on()

    def leave(self) -> None:
        """End it, because the client has left: the node ends what was asked."""
        self._link.abort()
        self._over("gone")

    # -- from the node ---------------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        """Pass the head on, unless it may be that of a node without room."""
        self.status = head.status
        if head.status == 101:
            self.is_tunnel = self._has_begun = True
            self.status = head.status
            self._client.write(switching_bytes(head))
            self._client.switch()
        elif head.status == 503 and self._is_new:
            self._refusal = head  # its body says whether it is full
        elif head.status in _LACKING and self._is_new and head.first(_LACKS):
            self.lacks, self._refusal = head.first(_LACKS), head
        elif head.status == NEEDS and self._may_ask:
            self._refusal = head
        else:
            self._pass_head(head)

    def _pass_head(self, head: ResponseHead) -> None:
        self._has_begun, self.status = True, head.status
        if not self._may_lead_away and 300 <= head.status < 400:
            head.headers = [each for each in head.headers if each[0] != b"location"]
        has_chunks = self._client.has_chunks
        self._in_chunks = head.length is None and has_chunks
        is_kept = self._client.is_kept and (head.length is not None or has_chunks)
        if not is_kept:
            self._client.is_closing = True
        framing = framing_for(head.length, has_chunks=has_chunks, status=head.status)
        self._held = response_bytes(head, is_kept=is_kept, framing=framing, page=self._client.page)
        asyncio.get_running_loop().call_soon(self._write, b"")

    def _write(self, data: bytes) -> None:
        """Send a piece of the answer, behind the head if that waits."""
        held, self._held = self._held, b""
        if held or data:
            self._client.write(held + data if held else data)

    def on_data(self, data: bytes) -> None:
        """Pass a piece of the answer on."""
        if self._refusal is not None and not self._has_begun:
            self._refused += data
            if len(self._refused) > _REFUSAL_BYTES:
                self._pass_refusal()
        else:
            self._write(chunk(data) if self._in_chunks else data)

    def on_end(self) -> None:
        """Take the end of the answer."""
        is_full = False
        if self._refusal is not None and not self._has_begun:
            if self.lacks or self._refusal.status == NEEDS:
                self._over("lacking" if self.lacks else "needs")
                return
            is_full = _FULL in self._refused
            if is_full and self._may_turn_away:
                self._over("full")
                return
            self._pass_refusal()
        self._write(LAST_CHUNK if self._in_chunks else b"")
        self._over("refused" if is_full else "whole")

    def pass_on(self) -> None:
        """Have the refusal of what is `lacking` as the client's answer after all."""
        self._pass_refusal()
        self._write(LAST_CHUNK if self._in_chunks else b"")

    def _pass_refusal(self) -> None:
        refusal, data = self._refusal, bytes(self._refused)
        self._refusal = None
        if refusal is not None:
            refusal.headers = [each for each in refusal.headers if each[0] != _LACKS]
            self._pass_head(refusal)
            self.on_data(data)

    def on_lost(self) -> None:
        """Take the end of the connection before that of the answer."""
        if self.end.done():
            return
        if self.is_tunnel:
            self._client.close()
            self._over("whole")
        elif self._has_begun:
            self._client.abort()
            self._over("cut")
        else:
            self._over("lost")

    def on_room(self) -> None:
        """Read the client again: the node takes more."""
        self._client.go_on()

    def _over(self, end: End) -> None:
        if not self.end.done():
            self.end.set_result(end)
