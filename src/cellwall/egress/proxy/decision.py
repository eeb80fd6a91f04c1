"""Decisions: whether a sandbox may connect to a name, an address, a port, or make a request.

Pure. A name is decided before it is resolved, and each address it resolves to is decided once more:
no name reaches an address that is neither public nor listed by the operator. The invariant: no rule
that matches, no connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from cellwall.egress.addresses import AddressPolicy
from cellwall.model.network import NetworkPolicy, NetworkRule

_OPEN = "open"


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
    if policy.mode == "open":
        return Decision(True, _OPEN)
    found = _matching(policy, name, port)
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
    if policy.mode == "open":
        return Decision(True, _OPEN)
    parsed = ip_address(address)
    found = [
        rule
        for rule in policy.rules
        if rule.network is not None
        and rule.network.version == parsed.version
        and parsed in rule.network
        and port in rule.ports
    ]
    if found:
        return Decision(True, str(found[0]), all(rule.looks_at_requests for rule in found))
    return _refused(policy, address, port)


def may_dial(listed: AddressPolicy, address: str) -> bool:
    """Whether an address is public, or one that the operator listed."""
    return listed.is_public(address) or listed.is_listed(address)


def for_request(policy: NetworkPolicy, host: str, port: int, method: str, path: str) -> Decision:
    """Decide on one HTTP request to a destination that was allowed."""
    if policy.mode == "open":
        return Decision(True, _OPEN)
    plain = path.partition("?")[0]
    if "/../" in f"{plain}/" or "/./" in f"{plain}/" or "%2e" in plain.lower() or "\\" in plain:
        # A server may resolve these to another path than the one that a rule looked at.
        candidates = [r for r in _to(policy, host, port) if not r.paths]
    else:
        candidates = _to(policy, host, port)
    for rule in candidates:
        if rule.methods and method not in rule.methods:
            continue
        if rule.paths and not plain.startswith(rule.paths):
            continue
        return Decision(True, str(rule))
    return Decision(False, f"no rule allows {method} {plain} at {host} port {port}")


def _to(policy: NetworkPolicy, host: str, port: int) -> list[NetworkRule]:
    found = _matching(policy, host, port)
    if found:
        return found
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


def _refused(policy: NetworkPolicy, host: str, port: int | None) -> Decision:
    if policy.mode == "none":
        return Decision(False, "the sandbox has no network")
    at = "" if port is None else f" port {port}"
    return Decision(False, f"no rule of the sandbox's network policy allows {host}{at}")
