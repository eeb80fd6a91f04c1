"""Connections counted by the address that they come from, so that one client leaves room to others.

Used by the connections of a server and of a gateway. The invariant: what was counted is given back
once, when the connection has ended.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.server.core.settings import Network


class Addresses:
    """The connections of one listener."""

    def __init__(self, most: int, proxies: tuple[Network, ...]) -> None:
        """`most` come from one address; those of `proxies` are not counted."""
        self._most = most
        self._proxies = proxies
        self._counts: Counter[str] = Counter()

    def is_too_many(self, address: str) -> bool:
        """Count a connection of `address`; report whether there are too many from there."""
        if not address or _is_in(address, self._proxies):
            return False
        self._counts[address] += 1
        return self._counts[address] > self._most

    def forget(self, address: str) -> None:
        """Uncount one connection of `address`."""
        if address in self._counts:
            self._counts[address] -= 1
            if self._counts[address] <= 0:
                del self._counts[address]


@lru_cache(maxsize=256)
def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    """Report whether an address is in one of the networks."""
    if not networks:
        return False
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or found
    return any(mapped in network for network in networks)
