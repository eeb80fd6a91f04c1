"""Decisions on names, addresses and requests: no rule that matches, no connection."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.proxy import decision
from cellwall.model.network import BROKER, NetworkPolicy

_LISTED = AddressPolicy(["10.1.0.0/16"])
_PUBLIC = "93.184.216.34"


@pytest.mark.parametrize(
    ("policy", "name", "port", "allowed"),
    [
        (None, "a.test", 443, False),
        ([], "a.test", 443, False),
        ("open", "a.test", 25, True),
        (["a.test"], "a.test", 443, True),
        (["a.test"], "a.test", None, True),
        (["a.test"], "a.test", 22, False),
        (["a.test:22"], "a.test", 22, True),
        (["a.test:22"], "a.test", 443, False),
        (["*.a.test"], "a.test", 443, False),
        (["*.a.test"], "b.a.test", 443, True),
        ([_PUBLIC], "a.test", 443, False),
    ],
)
def test_names(policy: Any, name: str, port: int | None, allowed: bool) -> None:
    assert decision.for_name(NetworkPolicy.of(policy), name, port).is_allowed is allowed


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (None, False),
        ("open", False),
        ([BROKER], False),
        ("packages", True),
        ({"allow": [], "packages": True}, True),
        ({"packages": False}, False),
    ],
)
def test_the_package_broker_is_a_destination_of_the_policy(policy: Any, allowed: bool) -> None:
    found = NetworkPolicy.of(policy)
    assert decision.for_name(found, BROKER, 80).is_allowed is allowed
    assert not decision.for_name(found, f"x.{BROKER}", 80).is_allowed or policy == "open"


@pytest.mark.parametrize(
    ("policy", "address", "allowed"),
    [
        (None, _PUBLIC, False),
        (["a.test"], _PUBLIC, False),
        ([f"{_PUBLIC}"], _PUBLIC, True),
        (["93.184.216.0/24"], _PUBLIC, True),
        (["93.184.216.0/24:22"], _PUBLIC, False),
        ("open", _PUBLIC, True),
        ("open", "2606:2800:220:1::1", True),
        ("open", "127.0.0.1", False),
        ("open", "169.254.169.254", False),
        ("open", "10.2.0.1", False),
        ("open", "10.1.0.1", True),
        (["10.0.0.0/8"], "10.2.0.1", False),
        (["10.0.0.0/8"], "10.1.0.1", True),
        (["127.0.0.0/8"], "127.0.0.1", False),
        (["[fd00::/8]:443"], "fd00::1", False),
        ("open", "::ffff:127.0.0.1", False),
        ("open", "::ffff:93.184.216.34", False),
        ("open", "64:ff9b::7f00:1", False),
        ("open", "0.0.0.0", False),
    ],
)
def test_addresses(policy: Any, address: str, allowed: bool) -> None:
    found = decision.for_address(NetworkPolicy.of(policy), _LISTED, address, 443)
    assert found.is_allowed is allowed
    assert found.rule


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/things", True),
        ("GET", "/v1/things?x=/v2/", True),
        ("POST", "/v1/things", False),
        ("GET", "/v2/things", False),
        ("GET", "/v1/../v2/things", False),
        ("GET", "/v1/%2e%2e/v2/things", False),
        ("GET", "/v1/..", False),
        ("GET", "/v1/.\\..\\v2", False),
        ("GET", "/v1/..%2fv2/things", False),
        ("GET", "/v1/%252e%252e/v2/things", False),
        ("GET", "/v1/..;x=1/v2/things", False),
        ("GET", "/v1/%00/things", False),
        ("GET", "/v1/a%20b/c%2fd/.hidden/..name", True),
        ("GET", "/v10", False),
    ],
)
def test_requests(method: str, path: str, allowed: bool) -> None:
    rule = {"host": "a.test", "ports": [80], "methods": ["GET"], "paths": ["/v1/"]}
    policy = NetworkPolicy.of([rule])
    assert decision.for_name(policy, "a.test", 80).looks_at_requests
    assert decision.for_request(policy, "a.test", 80, method, path).is_allowed is allowed


def test_a_rule_for_everything_wins() -> None:
    narrow = {"host": "a.test", "ports": [80], "methods": ["GET"]}
    policy = NetworkPolicy.of([narrow, "a.test:80"])
    assert not decision.for_name(policy, "a.test", 80).looks_at_requests
    assert decision.for_request(policy, "a.test", 80, "POST", "/x").is_allowed
