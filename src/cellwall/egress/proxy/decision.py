"""Decisions: whether a sandbox may connect to a name, an address, a port, or make a request.

Pure. A name is decided before it is resolved, and each address it resolves to is decided once more:
no name reaches an address that is neither public nor listed by the operator. The invariant: no rule
that matches, no connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote

from cellwall.egress.addresses import AddressPolicy
from cellwall.model.network import BROKER, NetworkPolicy, NetworkRule

_OPEN = "open"
_PACKAGES = "packages"
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
    found = _containing(policy, address, port)
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


def _refused(policy: NetworkPolicy, host: str, port: int | None) -> Decision:
    if policy.mode == "none":
        but = "" if policy.packages is None else f" but the package broker at {BROKER}"
        return Decision(False, f"the sandbox has no network{but}")
    at = "" if port is None else f" port {port}"
    return Decision(False, f"no rule of the sandbox's network policy allows {host}{at}")
