"""Doors of other protocols at a gateway: where requests go, and what nodes hear of their callers.

`apps` says which are open and what each protocol has (`Opened`); the door itself is at the nodes,
and answers in its protocol's shape also what has no key. The invariants: a key that is accepted
here does not go on, a word stands in its place; a token goes on only while its key is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.callers import (
    PROTOCOLS,
    Caller,
    in_protocols,
    rest_of_protocols,
    said_of,
)
from cellwall.server.auth.keys import Principal
from cellwall.server.core.request import refused_key

if TYPE_CHECKING:
    from cellwall.cluster.gateway.routing import Way
    from cellwall.cluster.gateway.wire.heads import Headers, RequestHead, Shaped
    from cellwall.server.auth.keys import Failures, KeyRing

_WORD = b"-"
"""What a node sees in the place of a key."""
_KEYS = (b"x-api-key", b"authorization", b"x-auth-token", b"x-sandbox-token")
"""Headers in which any of the protocols has a key."""
_TOKENS = (b"x-access-token", b"e2b-traffic-access-token")
_TOKEN = re.compile(rb"cws_[a-z0-9]{1,64}_([0-9a-f]{12})_[0-9a-f]{64}")
_STRANGER = Principal("", "", "run")
"""The caller of a request without a key: the door decides what it may have."""


@dataclass(frozen=True, slots=True)
class Opened:
    """One door that the operator has opened at the gateway."""

    name: str
    key_headers: tuple[bytes, ...]
    """Headers that have its clients' key, in the order in which it looks at them."""
    way_of: Callable[[str, str, Mapping[bytes, bytes]], Way]
    """Function that returns where a request goes: its method, its path in the door, its headers."""
    shaped: Callable[[Exception, str, Mapping[bytes, bytes]], Shaped]
    """Function that returns an error as the door answers it: a path in the door, headers."""
    has_tokens: bool = False
    """Whether its clients have tokens beside keys, which nodes check."""
    is_whole: bool = False
    """Whether `Authorization` may be a key as a whole, without `Bearer`."""
    tenant: str | None = None
    """Tenant of requests without a key; None: those are the door's to refuse."""

    def caller(
        self,
        head: RequestHead,
        peer: str,
        scheme: bytes,
        keys: KeyRing,
        tiers: Mapping[str, str],
        failures: Failures,
    ) -> Caller:
        """Return who asks, and what a node is told. Raises HttpError after too many wrong keys."""
        presented = self._presented(head)
        found = None if presented is None else keys.find(presented)
        head.key_id = "" if found is None else found.key_id
        if presented is None and self.tenant is not None and not _tokens(head):
            found = Principal(self.tenant, f"door-{self.name}", "run")
        if presented is not None and found is None and not self.has_tokens:
            _count(failures, peer)
        said: Headers = [(b"cellwall-scheme", scheme), (b"cellwall-peer", peer.encode())]
        if found is not None:
            said += said_of(found, tiers.get(found.tenant, ""))
        dropped = [name for name in _TOKENS if not _is_of_accepted(head.named.get(name), keys)]
        for name, word in self._words(head, keys):
            dropped.append(name)
            said.append((name, word))
        if in_protocols(head):
            dropped.append(PROTOCOLS)
            said += [(PROTOCOLS, rest) for rest in [rest_of_protocols(head)] if rest]
        return Caller(found or _STRANGER, said, frozenset(dropped))

    def has_accepted(self, head: RequestHead, keys: KeyRing) -> bool:
        """Report whether the key that let a request in, or else its tokens, are accepted still.

        What it has in a key's place and was never one of ours is not looked at.
        """
        if head.key_id:
            return keys.is_accepted(head.key_id)
        return all(_is_of_accepted(head.named.get(name), keys) for name in _TOKENS)

    def _presented(self, head: RequestHead) -> str | None:
        """Return the key that the door's clients present; None: there is none."""
        for name in self.key_headers:
            value = head.first(name)
            if name == b"authorization":
                value = _bearer(value) or (value if self.is_whole else "")
            if value:
                return value
        return None

    def _words(self, head: RequestHead, keys: KeyRing) -> list[tuple[bytes, bytes]]:
        """Return the headers that have a key of ours, with what goes on instead."""
        found: dict[bytes, bytes] = {}
        for name, raw in head.headers:  # a header may come twice
            if name not in _KEYS:
                continue
            value = raw.decode("latin-1")
            bearer = _bearer(value) if name == b"authorization" else ""
            if bearer and keys.find(bearer) is not None:
                found[name] = b"Bearer " + _WORD
            elif value and keys.find(value) is not None:
                found[name] = _WORD
        return [*found.items()]


def _bearer(value: str) -> str:
    kind, _, token = value.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _tokens(head: RequestHead) -> bool:
    return any(name in head.named for name in _TOKENS)


def _is_of_accepted(token: bytes | None, keys: KeyRing) -> bool:
    """Report whether a token may go on: its key is accepted, or it is none and opens nothing."""
    found = None if token is None else _TOKEN.fullmatch(token)
    return found is None or keys.is_accepted(found[1].decode())


def _count(failures: Failures, peer: str) -> None:
    """Count a wrong key. Raises HttpError if there were too many."""
    wait_s = failures.wait_s(peer or "unix")
    if wait_s > 0:
        raise refused_key(wait_s)
