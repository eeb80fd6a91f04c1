"""What one request counts in its tenant's quota of sandboxes over all nodes.

Made by `exchange` for each request; `agreed.quotas` does the sums. Where there is no directory, or
no tenant, nothing is counted here. The invariant: what a request has counted is given back once by
it, or stays until the nodes are asked what they have.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from cellwall.model.errors import CapacityError

if TYPE_CHECKING:
    from cellwall.cluster.gateway.agreed.quotas import Quotas
    from cellwall.cluster.gateway.routing import Way
    from cellwall.cluster.gateway.wire.heads import RequestHead
    from cellwall.cluster.gateway.work.tools import Called

SANDBOXES = "/sandboxes"
_COPYING = re.compile(r"/sandboxes/[^/]+/(fork)|/snapshots/[^/]+/(restore)")
"""Paths at which sandboxes are made of others, as a node reads them."""


class Counting:
    """See the module."""

    __slots__ = ("_counted", "_head", "_quotas", "_said", "_tenant", "_way")

    def __init__(self, quotas: Quotas | None, tenant: str, head: RequestHead, way: Way) -> None:
        """`quotas`: None counts nothing."""
        self._quotas = quotas
        self._tenant = tenant
        self._head = head
        self._way = way
        self._said = b""
        """What says how many copies a call makes."""
        self._counted = ""
        """Id of the sandbox that is counted by this request."""

    def called(self, found: Called) -> None:
        """Take what a call makes, which its body says."""
        self._way, self._said = self._way._replace(makes=found.makes), found.body

    @property
    def copying(self) -> str:
        """How the request makes sandboxes whose ids a node draws; empty: it makes none.

        `fork`: as many as its body says; `restore`: one.
        """
        if self._quotas is None or self._head.method != b"POST":
            return ""
        if self._way.makes:
            return {"sandbox": "restore", "fork": "fork"}.get(self._way.makes, "")
        found = _COPYING.fullmatch(unquote(self._head.path))
        return "" if found is None else found[1] or found[2]

    def copies(
        self, body: bytes, asked: Callable[[], str]
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold places for copies; the parameters are those of `Quotas.copies`."""
        if self._quotas is None:
            return contextlib.nullcontext()
        return self._quotas.copies(self._tenant, self.copying, self._said or body, asked)

    async def take(self, offered: str, node: str) -> None:
        """Count a sandbox that is to be made, before it is. Raises QuotaExceeded, StoreBusy."""
        if self._quotas is not None:
            await self._quotas.take(self._tenant, offered, node)

    def has(self, sandbox_id: str) -> None:
        """Note that a sandbox is counted by this request alone."""
        self._counted = sandbox_id

    async def give_back(self, sandbox_id: str) -> None:
        """Count a sandbox no longer, if this request has counted it."""
        if self._quotas is None or self._counted != sandbox_id:
            return
        self._counted = ""
        with contextlib.suppress(CapacityError):  # it is noticed before the next refusal
            await self._quotas.give_back(self._tenant, sandbox_id)
