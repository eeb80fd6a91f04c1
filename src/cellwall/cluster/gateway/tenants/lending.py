"""Lending: a node gets the secrets that a request names, with that request and for it alone.

A node keeps none. It refuses a request that names secrets before anything begins; the gateway gives
it the values under the id that it offers, and asks again. The invariant: a value goes to the node
that was asked for the work, over the cluster's own TLS, if the request names it, and is that of
this moment.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.gateway.tenants.vault import SECRET_NAME, no_secret
from cellwall.cluster.gateway.wire.asking import answer_on
from cellwall.model.errors import Conflict, NodeUnreachable
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.tenants.key_book import KeyBook
    from cellwall.cluster.gateway.tenants.vault import Vault

_JSON = (b"content-type", b"application/json")
_MOST = 32
"""Secrets that one request may name."""
_LONG_BYTES = 64 * 1024
"""Longer bodies are read beside the loop."""


class Keeps(NamedTuple):
    """What the directory keeps for tenants."""

    keys: KeyBook
    vault: Vault


async def lend(
    keeps: Keeps | None,
    node: Node,
    offered: str,
    caller: Caller | None,
    refusal: bytes,
    named: Collection[str],
) -> None:
    """Give a node the secrets that its `refusal` asks for, for work under the id `offered`.

    `named`: those that the request names; no others are given.
    Raises NotFound for one that there is not, Conflict if these gateways keep none, StoreBusy,
    NodeUnreachable, and UsageError for what cannot be opened. Nothing has begun.
    """
    if keeps is None or caller is None:
        raise without_directory("secrets")
    found = await keeps.vault.find(caller.principal.tenant, _names(node, refusal, named))
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
        try:
            failure = error_of(json.loads(answer.body)["error"], answer.status)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _no_node(node) from None
        raise failure


def without_directory(what: str) -> Conflict:
    """Return the error of what gateways keep nowhere."""
    return Conflict(
        f"{what}: this gateway keeps none, because it has no directory",
        remedy="give the gateways a directory ([gateway] directory; docs/cluster.md)",
    )


async def names_in(pieces: Sequence[bytes]) -> frozenset[str]:
    """Return the secrets that a request's body names; those of a long one are read in a thread."""
    body = b"".join(pieces)
    if len(body) <= _LONG_BYTES:
        return _named(body)
    return await asyncio.to_thread(_named, body)


def _named(body: bytes) -> frozenset[str]:
    try:
        named = json.loads(body)["secrets"]
        return frozenset(each for each in named if isinstance(each, str))
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def _names(node: Node, refusal: bytes, named: Collection[str]) -> list[str]:
    """Return the secrets that a node asks for.

    SECURITY: a node says them, so they are looked at before the directory sees them.
    Raises NotFound for what can be the name of none, or is not `named`; NodeUnreachable for what
    is no refusal of a node's.
    """
    try:
        names = [str(each) for each in json.loads(refusal)["error"]["names"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _no_node(node) from None
    if not names or len(names) > _MOST:
        raise _no_node(node)
    for name in names:
        if name not in named or not SECRET_NAME.fullmatch(name):
            raise no_secret(name)
    return names


def _no_node(node: Node) -> NodeUnreachable:
    return NodeUnreachable(
        f"node {node.name}: secrets: it does not answer as a node does; nothing has begun",
        retry_after_s=1.0,
        remedy="try again, and let the operator look at the node",
    )
