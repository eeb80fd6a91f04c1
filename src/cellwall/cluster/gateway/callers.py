"""Who asks a gateway, and how that is said to a node.

The key is checked here and taken out; the node hears the tenant. The invariant: a node never sees a
tenant's key, and what a client sends under the gateway's own names does not reach it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from cellwall.server.auth.tokens import TokenRefused, key_of_token
from cellwall.server.core.request import refused_key
from cellwall.server.port_proxy.headers import port_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.cluster.gateway.routing import Way
    from cellwall.cluster.gateway.wire.heads import Headers, RequestHead
    from cellwall.server.auth.keys import Failures, KeyRing, Principal

PROTOCOLS = b"sec-websocket-protocol"
"""Header in which a page's WebSocket may have a key, as `key.KEY`."""
_KEY = b"x-api-key"
_WORD = (_KEY, b"-")
"""What a node sees in the place of that header's key: `Authorization` beside it is not for us."""


class Caller(NamedTuple):
    """A caller whose key was checked."""

    principal: Principal
    said: Headers
    """What the node is told."""
    dropped: frozenset[bytes]
    """Headers of the client's that do not go on."""


def caller_of(
    head: RequestHead, peer: str, keys: KeyRing, tiers: Mapping[str, str], failures: Failures
) -> Caller:
    """Return who asks. Raises HttpError: no key, an unknown one, or too many of those."""
    presented, dropped = _presented(head)
    principal = None if presented is None else keys.find(presented)
    if principal is None:
        raise refused_key(failures.wait_s(peer or "unix"))
    dropped |= _other_keys(head, keys) | in_protocols(head)
    said = said_of(principal, tiers.get(principal.tenant, ""))
    if _KEY in dropped:
        said.append(_WORD)
    rest = rest_of_protocols(head) if PROTOCOLS in dropped else b""
    if rest:
        said.append((PROTOCOLS, rest))
    return Caller(principal, said, dropped)


def check_token(head: RequestHead, way: Way, keys: KeyRing) -> bool:
    """Report whether a token stands for the caller's key, which the node checks.

    Raises TokenRefused if the key that it names is not accepted any longer.
    """
    if way.thing == "token":
        _check_accepted(way.name, keys)
    if not way.may_have_token or b"x-api-key" in head.named:
        return False
    if _other_keys(head, keys):  # the bearer has a key of ours
        return False
    query = head.target.partition(b"?")[2]
    named = {"x-cellwall-token": head.first(b"x-cellwall-token")}
    token = way.name if way.thing == "token" else port_token(named, query)
    if not token:
        return False
    _check_accepted(token, keys)
    return True


def _check_accepted(token: str, keys: KeyRing) -> None:
    """Refuse a token whose key is not accepted any longer. Raises TokenRefused."""
    if not keys.is_accepted(key_of_token(token)):
        raise TokenRefused("token: it is not known, or no longer", remedy="have a new one signed")


def said_of(principal: Principal, tier: str) -> Headers:
    """Return the headers by which a node hears of a caller; names may have any letters."""
    return [*_said_of(principal, tier)]


@functools.lru_cache(maxsize=1024)
def _said_of(principal: Principal, tier: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"cellwall-tenant", quote(principal.tenant, safe="").encode()),
        (b"cellwall-key-id", principal.key_id.encode()),
        (b"cellwall-scope", principal.scope.encode()),
        (b"cellwall-tier", quote(tier, safe="").encode()),
    )


def _presented(head: RequestHead) -> tuple[str | None, frozenset[bytes]]:
    """Return the key of a request, and the header that has it."""
    key = head.named.get(b"x-api-key")
    if key is not None:
        return key.decode("latin-1"), frozenset({b"x-api-key"})
    kind, _, token = head.first(b"authorization").partition(" ")
    if kind.lower() == "bearer":
        return token.strip(), frozenset({b"authorization"})
    if head.upgrade:
        for each in head.first(PROTOCOLS).split(","):
            if each.strip().startswith("key."):
                return each.strip()[4:], frozenset({PROTOCOLS})
    return None, frozenset()


def _other_keys(head: RequestHead, keys: KeyRing) -> frozenset[bytes]:
    """Return the headers that have a key of ours beside the one that was presented.

    `Authorization` may be for a server inside a sandbox, and goes on then.
    """
    if b"authorization" not in head.named:
        return frozenset()
    bearer = head.first(b"authorization").partition(" ")[2].strip()
    has_key = bool(bearer) and keys.find(bearer) is not None
    return frozenset({b"authorization"}) if has_key else frozenset()


def in_protocols(head: RequestHead) -> frozenset[bytes]:
    """Return the header of WebSocket's protocols if one of them has the form of a key."""
    if PROTOCOLS not in head.named:
        return frozenset()
    has_key = any(each.strip().startswith("key.") for each in head.first(PROTOCOLS).split(","))
    return frozenset({PROTOCOLS}) if has_key else frozenset()


def rest_of_protocols(head: RequestHead) -> bytes:
    """Return WebSocket's protocols without those that have the form of a key."""
    offered = (each.strip() for each in head.first(PROTOCOLS).split(","))
    return ", ".join(each for each in offered if not each.startswith("key.")).encode("latin-1")
