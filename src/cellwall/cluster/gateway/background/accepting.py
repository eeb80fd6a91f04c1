"""Accepting programs in the background: what a request asks for, as the directory keeps it.

A node is asked what it would show of the program, without beginning it: so a request that a server
refuses is refused here, too, in the same words, and what clients see while it waits is a node's
word. The invariant: 202 is said only after the whole request is committed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.cluster.directory.programs import Accepted
from cellwall.cluster.gateway import errand
from cellwall.cluster.gateway.agreed.claims import KEY_FORM, digest_of, used_before
from cellwall.cluster.gateway.background.outcomes import object_of
from cellwall.cluster.gateway.tenants.lending import lend, names_in
from cellwall.cluster.gateway.wire.json_body import object_of as body_of
from cellwall.model.errors import UsageError
from cellwall.model.ids import GATEWAYS, new_id
from cellwall.server.executions.idempotency import gone
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.cluster.directory.claims import Claim
    from cellwall.cluster.directory.programs import Programs
    from cellwall.cluster.gateway.background.bounds import Bounds
    from cellwall.cluster.gateway.background.hooks import Hooks
    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.heads import RequestHead

_LONG_BYTES = 64 * 1024
"""Longer bodies are read beside the loop."""
_MAY = (b'"background"', b"\\u006", b"\\u007")
"""What a body has that asks for it; a letter of the name may be escaped, as one of these."""
_FORMS = frozenset({"application/json", "application/x-ndjson", "text/event-stream", "*/*", ""})
_JSON = "application/json"


class Kept(NamedTuple):
    """What a client is told of its program."""

    value: dict[str, Any]
    is_replay: bool
    """Whether an earlier request with its key made it."""


class _Asked(NamedTuple):
    """A body that asks for the background."""

    data: bytes
    """As a node gets it: gateways send webhooks, so it names none."""
    webhook: str


class Accepting:
    """See the module."""

    def __init__(self, gateway: Gateway, programs: Programs, hooks: Hooks, bounds: Bounds) -> None:
        self._gateway = gateway
        self._programs = programs
        self._hooks = hooks
        self._bounds = bounds

    async def accept(
        self, head: RequestHead, caller: Caller, request_id: str, body: bytes
    ) -> Kept | None:
        """Keep the program of a request; None: it is none for the background, or a node's to say.

        Raises what a node says of it, what `Bounds.room` raises, HttpError for a key that was used.
        """
        if not _may_ask(body) or not _is_plain(head):
            return None
        asked = await _asked(body)
        if asked is None:
            return None
        tenant = caller.principal.tenant
        key = head.first(b"idempotency-key")
        claim = await self._programs.claim_of(tenant, key) if key else None
        if claim is not None and claim.node == GATEWAYS:  # it was accepted: no bound refuses it
            return await self._replay(tenant, claim, digest_of(head, body))
        if asked.webhook:
            self._hooks.check(asked.webhook)
        size, has_webhook = len(asked.data), bool(asked.webhook)
        async with self._bounds.room(tenant, size, has_webhook=has_webhook):
            return await self._keep(head, caller, request_id, body, asked)

    async def _keep(
        self, head: RequestHead, caller: Caller, request_id: str, body: bytes, asked: _Asked
    ) -> Kept | None:
        tenant, program_id = caller.principal.tenant, new_id(GATEWAYS)
        said = _said(head, caller, request_id)
        shown = await self._tried(caller, request_id, program_id, said, asked.data)
        wanted = Accepted(program_id, one_line(said), asked.data, shown, asked.webhook)
        key = head.first(b"idempotency-key")
        if not key:
            await self._programs.accept(tenant, wanted)
            return Kept(json.loads(shown), is_replay=False)
        digest = digest_of(head, body)
        claim = await self._programs.accept_with_key(tenant, key, digest, wanted)
        if claim.offered == program_id:
            return Kept(json.loads(shown), is_replay=False)
        if claim.node != GATEWAYS:
            return None  # that node compares them
        return await self._replay(tenant, claim, digest)

    async def _replay(self, tenant: str, claim: Claim, digest: bytes) -> Kept:
        """Return the program that an earlier request with a key made. Raises HttpError."""
        if claim.digest != digest:
            raise used_before()
        seen = await self._programs.find(tenant, claim.offered)
        if seen is None:
            raise gone()
        return Kept(object_of(seen), is_replay=True)

    async def _tried(
        self,
        caller: Caller,
        request_id: str,
        program_id: str,
        said: dict[str, str],
        data: bytes,
    ) -> str:
        """Return what a node would show of a program that waits. Raises what it says instead."""
        offered = f"{program_id}.0"

        async def offer(_node: Node) -> str:
            return offered

        aid = aid_of(self._gateway, caller, said, offer, ((b"cellwall-trial", b"1"),))
        told = [*caller.said, (b"x-request-id", request_id.encode())]
        aid = replace(aid, may_begin=False)
        found = await errand.run(self._gateway.book, told, data, None, aid)
        return found.decode()


def aid_of(
    gateway: Gateway,
    caller: Caller,
    said: dict[str, str],
    offer: errand.Offer,
    more: tuple[tuple[bytes, bytes], ...],
) -> errand.Aid:
    """Return what is done for a program on its way to a node; `more`: headers of the request."""

    async def lending(node: Node, offered: str, refusal: bytes, program: bytes) -> None:
        named = await names_in([program])
        await lend(gateway.keeps, node, offered, caller, refusal, named)

    accept = (b"accept", said["accept"].encode("latin-1"))
    return errand.Aid(
        _uncounted,
        lending,
        lambda: None if gateway.data is None else gateway.data.lead(caller),
        offer,
        ((b"content-type", _JSON.encode()), accept, *more),
    )


def _uncounted(_size: int) -> None:
    """Count nothing: the answer is small."""


def _may_ask(body: bytes) -> bool:
    """Report whether a body has to be read to know whether it asks for the background."""
    return any(each in body for each in _MAY)


def _is_plain(head: RequestHead) -> bool:
    """Report whether a request is of the form that is kept; of any other a node says what it is."""
    key = head.named.get(b"idempotency-key")
    if key is not None and not KEY_FORM.fullmatch(key.decode("latin-1")):
        return False
    media = head.first(b"content-type").partition(";")[0].strip().lower()
    accept = head.first(b"accept").partition(";")[0].partition(",")[0].strip().lower()
    return media == _JSON and accept in _FORMS and b"?" not in head.target


def _said(head: RequestHead, caller: Caller, request_id: str) -> dict[str, str]:
    principal = caller.principal
    return {
        "key_id": principal.key_id,
        "scope": principal.scope,
        "request_id": request_id,
        "accept": head.first(b"accept")[:200] or _JSON,
    }


async def _asked(body: bytes) -> _Asked | None:
    """Return what a body asks for; None: not the background."""
    if len(body) <= _LONG_BYTES:
        return _looked(body)
    return await asyncio.to_thread(_looked, body)


def _looked(body: bytes) -> _Asked | None:
    try:
        found = body_of(body)
    except ValueError:
        return None  # a node says what is wrong with it
    if found.get("background") is not True:
        return None
    webhook = found.pop("webhook", None)
    if webhook is None:
        return _Asked(body, "")
    if not isinstance(webhook, str):
        raise UsageError("body: webhook: Input should be a valid string", remedy="see /docs")
    return _Asked(json.dumps(found).encode(), webhook)
