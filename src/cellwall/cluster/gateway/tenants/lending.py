"""Lending: a node gets the secrets that a request names, with that request and for it alone.

A node keeps none. It refuses a request that names secrets before anything begins; the gateway gives
it the values under the id that it offers, and asks again. The invariant: a value goes to the node
that was asked for the work, over the cluster's own TLS, and is that of this moment.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.gateway.wire.asking import answer_on
from cellwall.model.errors import Conflict, NodeUnreachable
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.tenants.key_book import KeyBook
    from cellwall.cluster.gateway.tenants.vault import Vault

_JSON = (b"content-type", b"application/json")


class Keeps(NamedTuple):
    """What the directory keeps for tenants."""

    keys: KeyBook
    vault: Vault


async def lend(
    keeps: Keeps | None, node: Node, offered: str, caller: Caller | None, refusal: bytes
) -> None:
    """Give a node the secrets that its `refusal` asks for, for work under the id `offered`.

    Raises NotFound for one that there is not, Conflict if these gateways keep none, StoreBusy,
    NodeUnreachable, and UsageError for what cannot be opened. Nothing has begun.
    """
    if keeps is None or caller is None:
        raise without_directory("secrets")
    found = await keeps.vault.find(caller.principal.tenant, _names(refusal))
    target = b"/node/secrets/" + offered.encode()
    body = json.dumps({"secrets": found}).encode()
    try:
        link = await node.links.take()
        try:
            said = [*caller.said, _JSON]
            answer = await answer_on(link, node.links.address, target, said, body)
        finally:
            node.links.give_back(link)
    except OSError as error:
        raise NodeUnreachable(
            f"node {node.name}: secrets: {error.strerror or error}; nothing has begun",
            retry_after_s=1.0,
            remedy="try again",
        ) from None
    if answer.status != 200:
        raise error_of(json.loads(answer.body)["error"], answer.status)


def without_directory(what: str) -> Conflict:
    """Return the error of what gateways keep nowhere."""
    return Conflict(
        f"{what}: this gateway keeps none, because it has no directory",
        remedy="give the gateways a directory ([gateway] directory; docs/cluster.md)",
    )


def _names(refusal: bytes) -> Sequence[str]:
    return [str(each) for each in json.loads(refusal)["error"]["names"]]
