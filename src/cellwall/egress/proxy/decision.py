"""Decisions: whether a sandbox may connect to a name, an address, a port, or make a request.

Pure. A name is decided before it is resolved, and each address it resolves to is decided once more:
no name reaches an address that is neither public nor listed by the operator. The invariant: no rule
that matches, no connection; and none to what is denied, by whichever name or address it is meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

from cellwall.egress.addresses import AddressPolicy
from cellwall.model.network import BROKER, NetworkPolicy
from cellwall.model.network_rule import DeniedDestination, NetworkRule

_OPEN = "open"
_PACKAGES = "packages"
_PLAIN_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
"""Names that mean themselves to every resolver; some read `\\101` as a letter."""
_EMBEDDING = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""Networks whose addresses end in an IPv4 address."""
_MOST_DECODED = 4
"""Most times that a path is decoded until it stays as it is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision on one destination."""

    is_allowed: bool
    rule: str
    """Text of the rule that allows it, or the reason of the refusal."""
    looks_at_requests: bool = False
    """Whether each HTTP request has to be decided as well, and nothing but HTTP passes."""


def for_name(policy: NetworkPolicy, name: str, port: int | None) -> Decision:
    """Decide on a host name in lower case; a `port` of None asks whether any port is allowed."""
    if name == BROKER:  # never one of the DNS's, also where every name is allowed
        is_on = policy.packages is not None
        return Decision(is_on, _PACKAGES if is_on else "the sandbox's policy has no packages")
    found = _matching(policy, name, port)
    refusal = _denial_of_name(policy, name, port, found)
    if refusal is not None:
        return refusal
    if policy.mode == "open":
        return Decision(True, _OPEN)
    if found:
        # A rule for everything wins over one that looks at requests.
        looks = all(rule.looks_at_requests for rule in found)
        return Decision(True, str(found[0]), looks)
    return _refused(policy, name, port)


def for_address(policy: NetworkPolicy, listed: AddressPolicy, address: str, port: int) -> Decision:
    """Decide on a literal address that the program dialled or named."""
    where = f"{address} port {port}"
    if not may_dial(listed, address):
        return Decision(False, f"{where} is no public address")
    denied = _denial_of_address(policy, address, port)
    if denied is not None:
        return _is_denied(where, denied)
    if policy.mode == "open":
        return Decision(True, _OPEN)
    found = _containing(policy, address, port)
    if found:
        return Decision(True, str(found[0]), all(rule.looks_at_requests for rule in found))
    return _refused(policy, address, port)


def denial_at(policy: NetworkPolicy, name: str, address: str, port: int | None) -> Decision | None:
    """Return the refusal of an address that an allowed name resolved to; None: it is not denied.

    A `port` of None asks whether every port is denied.
    """
    denied = _denial_of_address(policy, address, port)
    return None if denied is None else _is_denied(f"{name} at {address}{_at(port)}", denied)


def denial_of_server(policy: NetworkPolicy, name: str, port: int) -> Decision | None:
    """Return the refusal of a server that TLS or HTTP names on a connection to an address."""
    return _denial_of_name(policy, name, port, [])


def may_dial(listed: AddressPolicy, address: str) -> bool:
    """Whether an address is public, or one that the operator listed."""
    return listed.is_public(address) or listed.is_listed(address)


def for_request(policy: NetworkPolicy, host: str, port: int, method: str, path: str) -> Decision:
    """Decide on one HTTP request to a destination that was allowed."""
    denied = policy.denial_of_name(host, port) or _denial_of_address(policy, host, port)
    if denied is not None:
        return _is_denied(f"{host}{_at(port)}", denied)
    if policy.mode == "open":
        return Decision(True, _OPEN)
    plain = path.partition("?")[0]
    candidates = _matching(policy, host, port) or _containing(policy, host, port)
    if not _is_straight(plain):
        # A server may read it as another path than the one whose beginning a rule looks at.
        candidates = [rule for rule in candidates if not rule.paths]
    for rule in candidates:
        if rule.methods and method not in rule.methods:
            continue
        if rule.paths and not plain.startswith(rule.paths):
            continue
        return Decision(True, str(rule))
    return Decision(False, f"no rule allows {method} {plain} at {host} port {port}")


def _is_straight(path: str) -> bool:
    """Whether no server can read a path as one that begins otherwise, however often it decodes."""
    for _ in range(_MOST_DECODED):
        decoded = unquote(path, "latin-1")
        if decoded == path:
            parts = [part.partition(";")[0] for part in re.split(r"[/\\]", path)]
            return path.isprintable() and not {".", ".."} & set(parts)
        path = decoded
    return False


def _containing(policy: NetworkPolicy, host: str, port: int) -> list[NetworkRule]:
    """Return the rules for a network that a literal address is in; none for a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return []
    return [
        rule
        for rule in policy.rules
        if rule.network is not None
        and rule.network.version == address.version
        and address in rule.network
        and port in rule.ports
    ]


def _matching(policy: NetworkPolicy, name: str, port: int | None) -> list[NetworkRule]:
    return [
        rule
        for rule in policy.rules
        if rule.matches_name(name) and (port is None or port in rule.ports)
    ]


def _denial_of_name(
    policy: NetworkPolicy, name: str, port: int | None, rules: list[NetworkRule]
) -> Decision | None:
    """Return the refusal of a denied name; None if it is not denied.

    At a `port` of None it is denied if it is at each port of `rules`, which allow it.
    """
    if not any(each.name for each in policy.denied):
        return None
    if not _PLAIN_NAME.fullmatch(name):
        return Decision(False, f"{name!r:.80} is no plain host name, and the policy denies some")
    ports = {port} if port is not None or not rules else {p for rule in rules for p in rule.ports}
    found = [policy.denial_of_name(name, each) for each in ports]
    denied = [each for each in found if each is not None]
    return _is_denied(f"{name}{_at(port)}", denied[0]) if len(denied) == len(found) else None


def _denial_of_address(
    policy: NetworkPolicy, host: str, port: int | None
) -> DeniedDestination | None:
    """Return what denies a literal address, in any of its forms; None also for a name."""
    if not policy.denied:
        return None
    try:
        forms = _forms(ip_address(host))
    except ValueError:
        return None
    for each in policy.denied:
        network = each.network
        if network is None or not each.denies_port(port):
            continue
        if any(form.version == network.version and form in network for form in forms):
            return each
    return None


def _forms(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """Return an address and the IPv4 address that is embedded in it, if one is."""
    found = [address]
    if isinstance(address, IPv6Address):
        if any(address in network for network in _EMBEDDING):
            found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
        elif address.sixtofour is not None:
            found.append(address.sixtofour)
        elif address.teredo is not None:
            found += address.teredo
    return found


def _is_denied(what: str, denied: DeniedDestination) -> Decision:
    return Decision(False, f"the sandbox's network policy denies {what} (deny {denied})")


def _at(port: int | None) -> str:
    return "" if port is None else f" port {port}"


def _refused(policy: NetworkPolicy, host: str, port: int | None) -> Decision:
    if policy.mode == "none":
        but = "" if policy.packages is None else f" but the package broker at {BROKER}"
        return Decision(False, f"the sandbox has no network{but}")
    return Decision(False, f"no rule of the sandbox's network policy allows {host}{_at(port)}")
