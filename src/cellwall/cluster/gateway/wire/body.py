"""The body of one request on its way to a node, kept as long as another node may need it.

Made by `exchange`; the client's connection feeds it. The invariants: what is kept counts in the
budget of bodies; a body of which a part is no longer kept goes to one node alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.wire.heads import CONTINUE
from cellwall.model.errors import CapacityError
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead
    from cellwall.cluster.gateway.wire.passage import Passage
    from cellwall.model.errors import CellwallError
    from cellwall.server.core.body_budget import Held

_KEPT_BYTES = 8 << 20
"""Bytes of a request's body that are kept so that another node can have it."""
_TOGETHER_BYTES = 64 * 1024
"""Largest body that is joined to its head: a larger one is not copied to save a system call."""


class Body:
    """See the module."""

    __slots__ = (
        "_client", "_held", "_is_gone", "_is_too_long", "_news", "_pieces", "_waits", "can_repeat",
        "is_whole", "length", "passage",
    )  # fmt: skip

    def __init__(self, client: ClientLink, head: RequestHead, held: Held) -> None:
        """`held` counts what is kept."""
        self._client = client
        self._held = held
        self._pieces: list[bytes] = []
        self.length = 0 if head.upgrade else head.length
        """Bytes of it; None: it comes in chunks."""
        self.can_repeat = True
        """Whether all of it so far is kept."""
        self._is_too_long = False
        """Whether its length is why it is not kept."""
        self.is_whole = head.length == 0 or bool(head.upgrade)
        self._waits = head.first(b"expect").lower() == "100-continue"
        self._is_gone = False
        self._news: asyncio.Future[None] | None = None
        self.passage: Passage | None = None
        """Where it goes now; None: no node is asked."""

    @property
    def kept(self) -> list[bytes] | None:
        """All of it so far; None: it is longer than what is kept."""
        return self._pieces if self.can_repeat else None

    def not_kept(self, why: str, remedy: str) -> CellwallError:
        """Return the error of a body that was not kept; `why` it is needed again or whole."""
        if self._is_too_long or (self.length or 0) > _KEPT_BYTES:
            return HttpError(
                413, "too_large", f"body: {why}, and so much is not kept", remedy=remedy
            )
        return CapacityError(
            f"body: {why}, and there is no room to keep it now",
            retry_after_s=1.0,
            remedy="try again",
        )

    # -- of the client ---------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Pass a piece on, and keep it while another node may need it."""
        passage = self.passage
        if passage is not None and passage.is_tunnel:
            passage.send(data)
            return
        self._keep(data)
        if passage is not None:
            passage.send(data)
        elif not self.can_repeat:
            self._client.hold()  # until there is a connection
            self._tell()

    def _keep(self, data: bytes) -> None:
        if self.can_repeat:
            self.can_repeat = self._has_room(len(data))
        if self.passage is None or self.can_repeat:
            self._pieces.append(data)
        else:
            self._pieces.clear()
            self._held.resize(0)

    def _has_room(self, more: int) -> bool:
        """Count bytes that are kept; False: they are too many, and the body goes to one node."""
        try:
            self._held.resize(self._held.size + more)
        except CapacityError:
            return False
        self._is_too_long = self._held.size > _KEPT_BYTES
        return not self._is_too_long

    def end(self) -> None:
        """Note that the request is whole."""
        self.is_whole = True
        self._tell()
        if self.passage is not None:
            self.passage.whole()

    def leave(self) -> None:
        """Note that the client has left: nothing more comes."""
        self._is_gone = True
        self._tell()

    # -- to a node -------------------------------------------------------------------------

    async def until_whole(self) -> None:
        """Wait until it is whole, or as much of it is here as is kept."""
        self._ask_for_it()
        while not self.is_whole and self.can_repeat and not self._is_gone:
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    def _ask_for_it(self) -> None:
        """Tell a client that waits to be asked for its body to send it."""
        if self._waits and not self.is_whole:
            self._waits = False
            self._client.write(CONTINUE)

    def _tell(self) -> None:
        """Wake what waits for it."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def begin(self, passage: Passage, head: bytes, *, has_answer_body: bool) -> None:
        """Send the head for a node, and what there is of the body; the rest goes as it comes."""
        rest = self._pieces
        if self.length and len(rest) == 1 and len(rest[0]) <= _TOGETHER_BYTES:
            head, rest = head + rest[0], []
        passage.ask(head, self.length, has_answer_body=has_answer_body)
        self.passage = passage
        self._ask_for_it()
        for piece in rest:
            passage.send(piece)
        if not self.can_repeat:
            self._pieces.clear()
            self._client.go_on()
        if self.is_whole and self.length != 0:
            passage.whole()

    def release(self) -> None:
        """Keep nothing any more."""
        self._held.release()
