"""Secrets that a gateway lends a node, each for one request, under the id that it offers for it.

They are in memory alone: from the gateway's word until the request takes them, for seconds, and
then as long as what it makes. The invariant: they are taken once, by their tenant's request.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import NotFound, UsageError
from cellwall.model.secret import Secret, secrets_of
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.state import State

_MOST = 1000
"""Requests for which secrets wait at once; the oldest is asked for again."""
_WAITS_S = 60.0
_MOST_BYTES = 2 << 20


class _Loan(NamedTuple):
    secrets: tuple[Secret, ...]
    until_s: float


class Lent:
    """See the module."""

    def __init__(self) -> None:
        self._loans: OrderedDict[tuple[str, str], _Loan] = OrderedDict()

    def open(self, state: State) -> None:
        """Have the node look nowhere else."""
        state.engine.find_secrets = _find_none

    def put(self, tenant: str, offered: str, secrets: tuple[Secret, ...]) -> None:
        """Keep secrets for a tenant's request under an id, for a while."""
        self._drop_old()
        self._loans[tenant, offered] = _Loan(secrets, time.monotonic() + _WAITS_S)
        if len(self._loans) > _MOST:
            self._loans.popitem(last=False)

    def take(self, tenant: str, offered: str) -> tuple[Secret, ...]:
        """Return what was lent for the request under an id, and forget it."""
        if not self._loans:
            return ()
        self._drop_old()
        loan = self._loans.pop((tenant, offered), None)
        return () if loan is None else loan.secrets

    def _drop_old(self) -> None:
        now_s = time.monotonic()
        while self._loans and next(iter(self._loans.values())).until_s < now_s:
            self._loans.popitem(last=False)

    # -- of gateways -----------------------------------------------------------------------

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The route by which gateways lend, which they alone reach."""
        return (
            Endpoint(
                "POST",
                "/node/secrets/{offered}",
                self._lend,
                "Take secrets for one request, from gateways",
                {200: Answer("They are there.")},
                access="public",
                tags=("server",),
            ),
        )

    async def _lend(self, request: Request) -> None:
        tenant = request.owner
        found = read(await request.body(_MOST_BYTES))
        values = [each.reveal() for each in found]
        request.state.observer.redactor.learn_all(values, tenant)
        self.put(tenant, request.params["offered"], found)
        await request.answer({"message": "lent"})


def read(body: bytes) -> tuple[Secret, ...]:
    """Return the secrets of a gateway's message. Raises UsageError, which says no value."""
    try:
        given = json.loads(body)["secrets"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            "secrets: not what a gateway says", remedy="use the same version"
        ) from None
    return secrets_of(given)


async def _find_none(_tenant: str, names: Sequence[str]) -> list[Secret]:
    """Raise NotFound: nothing was lent for it, or to the server before this one."""
    raise NotFound(
        f"secret {names[0][:100]!r}: this node was started again, and has no value of it",
        remedy="send the program again",
    )
