"""Networks: E2B's lists of what is allowed and denied, as a network policy of ours.

Theirs is open unless denied, and what is allowed wins over what is denied; ours is closed unless
allowed, and what is denied wins. A list that cannot be said in our words is refused. Allowed hosts
are reached at the ports of the web. Theirs has IPv4 alone, so that what is denied there is denied
whole: beside it IPv6 is denied as well. The invariant: a policy is never wider than what the client
wrote.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from operator import itemgetter
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.answers import empty, refused
from cellwall.apps.doors.e2b.control import bodies
from cellwall.apps.doors.e2b.control.finding import existing
from cellwall.apps.doors.e2b.facts import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cellwall.apps.doors.door import Visit

_OPEN, _NONE = "open", "none"
_EVERYTHING = IPv4Network(EVERYWHERE)
_ALL_OF_IPV6 = IPv6Network("::/0")
_NEEDS_ALL = (
    "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
    "to block all other traffic."
)
_MOST_DENIED = 1000
"""Most networks that remain denied; each allowed one may divide a denied one into many."""
_Network = IPv4Network | IPv6Network


def policy_of(
    allow_internet: bool | None, allow: Sequence[str] | None, deny: Sequence[str] | None
) -> str | list[str] | dict[str, object] | None:
    """Return the policy, as `network=` takes it; None if nothing was said of it.

    Raises the 400 that names the field.
    """
    if allow_internet is None and not allow and not deny:
        return None
    denied = {each: _network(each) for each in deny or ()}
    for text, network in denied.items():
        if network is None:
            raise refused("denyOut", f"{text[:60]!r} is no address and no network")
    is_closed = allow_internet is False or _EVERYTHING in denied.values()
    allowed = list(dict.fromkeys(allow or ()))
    if is_closed and EVERYWHERE not in allowed:
        return allowed or _NONE
    if not is_closed and not all(map(_network, allowed)):
        raise refused("allowOut", _NEEDS_ALL)
    remaining = _remaining(denied.values(), allowed)
    return {"mode": _OPEN, "deny": remaining} if remaining else _OPEN


def _remaining(listed: Iterable[_Network | None], allowed: Sequence[str]) -> list[str]:
    """Return the networks that are denied once what is allowed is taken out of them."""
    found: list[str] = []
    lifted = [each for each in map(_network, allowed) if each is not None]
    denied = [each for each in listed if each is not None]
    if next(_without([each for each in denied if each.version == 4], lifted), None) is not None:
        denied.append(_ALL_OF_IPV6)
    for each in _without(denied, lifted):
        # All of IPv4, put together of parts, is no entry of ours.
        found += map(str, each.subnets() if each == _EVERYTHING else (each,))
        if len(found) > _MOST_DENIED:
            raise refused(
                "denyOut", f"without what allowOut lists it is more than {_MOST_DENIED} networks"
            )
    return found


def _network(text: str) -> _Network | None:
    """Return the addresses that a text means; None if it is neither an address nor a network."""
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    if isinstance(found, IPv6Network) and found.subnet_of(IPv6Network("::ffff:0:0/96")):
        low = int(found.network_address) & 0xFFFF_FFFF
        return IPv4Network((low, found.prefixlen - 96))
    return found


def _without(denied: Sequence[_Network], allowed: Sequence[_Network]) -> Iterator[_Network]:
    """Yield the networks that are denied and not allowed, as few as there can be."""
    for make, version in ((IPv4Address, 4), (IPv6Address, 6)):
        holes = _ranges(allowed, version)
        for low, high in _ranges(denied, version):
            for first, last in _outside(holes, low, high):
                yield from ipaddress.summarize_address_range(make(first), make(last))


def _ranges(networks: Sequence[_Network], version: int) -> list[tuple[int, int]]:
    """Return the networks of one version of IP as first and last addresses, in order."""
    mine = sorted((int(n[0]), int(n[-1])) for n in networks if n.version == version)
    found: list[tuple[int, int]] = []
    for first, last in mine:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def _outside(holes: list[tuple[int, int]], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield what is between two addresses and in no hole; holes are in order and apart."""
    for first, last in holes[bisect_left(holes, low, key=itemgetter(1)) :]:
        if first > high:
            break
        if low < first:
            yield low, first - 1
        low = last + 1
    if low <= high:
        yield low, high


def with_rules(
    policy: str | list[str] | dict[str, object], rules: Mapping[str, Sequence[bodies.HostRule]]
) -> str | list[str] | dict[str, object]:
    """Return a policy with what E2B's rules set in requests. Raises the 400 if there are none."""
    said = [
        {"host": host, "set": rule.transform.headers}
        for host, listed in rules.items()
        for rule in listed
        if rule.transform is not None and rule.transform.headers
    ]
    if not said:
        return policy
    if policy == _NONE:
        raise refused("rules", "the sandbox has no network whose requests they could change")
    if isinstance(policy, str):
        return {"mode": policy, "headers": said}
    whole = policy if isinstance(policy, dict) else {"allow": policy}
    return {**whole, "headers": said}


def check_egress(network: bodies.Network | bodies.NetworkUpdate) -> None:
    """Raise the 400 for what no policy of ours has."""
    bodies.check_absent(network, "egress_proxy", "dns_servers")


async def update(visit: Visit) -> None:
    """`PUT /sandboxes/{id}/network`: what is not said is open."""
    request = visit.request
    body = await bodies.read(request, bodies.NetworkUpdate)
    check_egress(body)
    policy = policy_of(body.allow_internet_access, body.allow_out, body.deny_out)
    sandbox = await existing(visit)
    await sandbox.set_network(with_rules(_OPEN if policy is None else policy, body.rules or {}))
    await empty(request)
