"""Visits: where a registry may lead us, by a redirect or by the token service that it names.

Not the operator's list of registries (`registry`). The invariants: a host is resolved once, and the
connection goes to the address that was checked; a registry whose own address is public leads to
public addresses alone, unless the operator permits others; and none leads to a cloud's metadata.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from urllib.parse import SplitResult

Permits = Callable[[str], bool]
"""Reports whether an address may be connected to."""


def is_public(address: str) -> bool:
    """Report whether an address is plainly public; one with another address in it is not."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found not in _PLAIN:
        return False
    return found.is_global and not found.is_multicast


_PLAIN = ipaddress.ip_network("2000::/3")


class Visits:
    """The visits of one pull."""

    def __init__(self, own_host: str, permits: Permits) -> None:
        """`own_host` is the registry's, as the operator wrote it."""
        self._own_host = own_host
        self._permits = permits
        self._is_inside: bool | None = None

    async def address_of(self, url: SplitResult) -> str | None:
        """Return an address of the URL's host that may be connected to; None: there is none."""
        if self._is_inside is None:
            # An operator's registry inside leads to what is inside, as its token service is.
            own = await _resolved(self._own_host)
            self._is_inside = bool(own) and not any(map(self._permits, own))
        for address in await _resolved(url.hostname or ""):
            if self._permits(address) or (self._is_inside and not _is_metadata(address)):
                return address
        return None


_METADATA = tuple(
    map(
        ipaddress.ip_network,
        ("169.254.0.0/16", "fe80::/10", "100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::/32"),
    )
)


def _is_metadata(address: str) -> bool:
    """Report whether a cloud may answer there with what this machine may do."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or found
    return any(mapped.version == each.version and mapped in each for each in _METADATA)


async def _resolved(host: str) -> list[str]:
    """Return the addresses of a host; none if it has no address."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(each[4][0]) for each in found]
