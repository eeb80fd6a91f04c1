"""One request for what gateways keep themselves: its body is small and read whole, then answered.

Begun by `gateway`, which has checked key and scope; `answers` knows what to do. The invariant: a
change that has begun goes to its end, also if its client has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.tenants.answers import answer_to
from cellwall.cluster.gateway.wire.heads import CONTINUE
from cellwall.server.core.errors import HttpError
from cellwall.server.core.request import too_large

if TYPE_CHECKING:
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.routing import Way
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead
    from cellwall.server.auth.keys import Scope

_MOST_BYTES = 64 * 1024
_SCOPES: Mapping[str, Scope] = {
    "key": "admin",
    "secret": "manage",
    "audit": "admin",
    "webhooks": "manage",
}


def check_scope(way: Way, caller: Caller | None) -> None:
    """Refuse a key whose scope is not enough for a way. Raises HttpError."""
    needed = _SCOPES.get(way.thing)
    if needed is None or way.kind != "own" or caller is None:
        return
    if not caller.principal.may(needed):
        raise HttpError(
            403,
            "forbidden",
            f"key: its scope is {caller.principal.scope}, {needed} is needed",
            remedy="use another key",
        )


class Asked:
    """See the module."""

    def __init__(
        self, gateway: Gateway, client: ClientLink, head: RequestHead, way: Way, caller: Caller
    ) -> None:
        self.gateway = gateway
        self.client = client
        self.head = head
        self.way = way
        self.caller = caller
        self.request_id = gateway.request_id_of(head)
        self.body = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_begun = self._is_gone = False
        if head.length == 0:
            asyncio.get_running_loop().call_soon(self._begin)
        elif head.first(b"expect").lower() == "100-continue":
            client.write(CONTINUE)

    # -- of the client ---------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._size += len(data)
        if self._size > _MOST_BYTES:
            self._pieces.clear()
            self.client.is_closing = True  # the rest is not read
            self._begin()
        else:
            self._pieces.append(data)

    def on_whole(self) -> None:
        """Answer."""
        self._begin()

    def on_room(self) -> None:
        """Nothing waits for it."""

    def on_full(self) -> None:
        """Nothing more comes."""

    def on_gone(self) -> None:
        """Answer nothing."""
        self._is_gone = True

    # -- answering -------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._has_begun and not self._is_gone:
            self._has_begun = self.head.has_begun = True
            self.gateway.tasks.spawn(self._run())

    async def _run(self) -> None:
        gateway, client, head = self.gateway, self.client, self.head
        try:
            if self._size > _MOST_BYTES:
                raise too_large(_MOST_BYTES)
            self.body = b"".join(self._pieces)
            status, value = await answer_to(self)
            if not self._is_gone:
                more = {"cache-control": "no-store"}
                gateway.answer(client, head, status, value, self.request_id, more)
        except Exception as error:  # noqa: BLE001 - a defect has to be an answer, too
            if not self._is_gone:
                gateway.refuse(client, head, error, self.request_id)
        client.done()
