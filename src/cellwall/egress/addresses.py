"""The addresses that the server may connect to on a caller's wish.

The functions are pure; names are resolved by `posting`. The check applies to the address a
connection is about to be made to, never to a name or a caller's text: every odd spelling of an
address has one address. The invariant: an address that is not plainly public is denied unless the
operator listed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from cellwall.model.errors import UsageError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# https://www.iana.org/assignments/iana-ipv4-special-registry and …-ipv6-special-registry. Written
# out, because what `ipaddress` calls global differs between the supported versions of Python.
_DENIED: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network; 0.0.0.0 reaches the local host
            "10.0.0.0/8",
            "100.64.0.0/10",  # carriers' NAT; a cloud's metadata at 100.100.100.200
            "127.0.0.0/8",
            "168.63.129.16/32",  # a cloud's control channel, on a public address
            "169.254.0.0/16",  # link-local; most clouds' metadata
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments; a cloud's metadata at 192.0.0.192
            "192.0.2.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks between networks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
            "::/96",  # unspecified, loopback, IPv4-compatible
            "::ffff:0:0/96",  # IPv4-mapped
            "::ffff:0:0:0/96",  # IPv4-translated
            "64:ff9b::/96",  # NAT64: embeds an IPv4 address
            "64:ff9b:1::/48",
            "100::/64",  # discard
            "2001::/23",  # protocol assignments, Teredo
            "2001:db8::/32",
            "2002::/16",  # 6to4: embeds an IPv4 address
            "3fff::/20",
            "5f00::/16",  # segment routing
            "fc00::/7",  # unique local; a cloud's metadata at fd00:ec2::254
            "fe80::/10",
            "fec0::/10",  # site-local, of old
            "ff00::/8",  # multicast
        ),
    )
)


class AddressPolicy:
    """The addresses that the operator allows beside public ones."""

    def __init__(self, listed: Iterable[str] = ()) -> None:
        """`listed` are networks such as `10.1.2.0/24` or `::1`; `UsageError` if one is not."""
        networks = []
        for text in listed:
            try:
                networks.append(ip_network(text))
            except ValueError:
                raise UsageError(
                    f"addresses: {text!r} is no network",
                    remedy="write an address or a network, such as 10.1.2.0/24",
                ) from None
        self._listed: tuple[Network, ...] = tuple(networks)

    def is_listed(self, address: str) -> bool:
        """Report whether the operator listed this address."""
        return _is_in(ip_address(address), self._listed)

    def is_public(self, address: str) -> bool:
        """Report whether it is an address of the whole internet."""
        return _is_public(address)


@lru_cache(4096)
def _is_public(address: str) -> bool:
    found = ip_address(address)
    return not _is_in(found, _DENIED) and not found.is_multicast


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == net.version and address in net for net in networks)
