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


# -- what is denied ----------------------------------------------------------------------------


def _open_but(*denied: object) -> NetworkPolicy:
    return NetworkPolicy.of({"mode": "open", "deny": [*denied]})


@pytest.mark.parametrize(
    ("denied", "name", "port", "allowed"),
    [
        ("a.test", "a.test", 443, False),
        ("a.test", "a.test", 22, False),
        ("a.test", "a.test", None, False),
        ("a.test", "b.a.test", 443, True),
        ("a.test", "a.test.evil.test", 443, True),
        ("*.a.test", "a.test", 443, True),
        ("*.a.test", "b.a.test", 443, False),
        ("*.a.test", "c.b.a.test", 443, False),
        ("*.a.test", "eva.test", 443, True),
        ("*.test", "a.test", 443, False),
        ("a.test:25", "a.test", 25, False),
        ("a.test:25", "a.test", 443, True),
        ("a.test:25", "a.test", None, True),
        ("93.184.216.0/24", "a.test", 443, True),
        # What a resolver may read as another name.
        ("a.test", r"\097.test", 443, False),
        ("a.test", "a.test.", 443, False),
        ("a.test", "a..test", 443, False),
        ("a.test", "a.test\n", 443, False),
    ],
)
def test_denied_names(denied: str, name: str, port: int | None, allowed: bool) -> None:
    found = decision.for_name(_open_but(denied), name, port)
    assert found.is_allowed is allowed
    assert decision.for_name(NetworkPolicy.of("open"), name, port).is_allowed
    if port is not None:
        named = decision.denial_of_server(_open_but(denied), name, port)
        assert (named is None) is allowed


def test_a_refusal_names_what_denies() -> None:
    policy = _open_but("b.test", "93.184.0.0/16:443", "*.a.test")
    found = decision.for_name(policy, "c.a.test", 80)
    assert found.rule.endswith("denies c.a.test port 80 (deny *.a.test)")
    found = decision.for_address(policy, _LISTED, _PUBLIC, 443)
    assert found.rule.endswith(f"denies {_PUBLIC} port 443 (deny 93.184.0.0/16:443)")
    at = decision.denial_at(policy, "c.test", _PUBLIC, 443)
    assert at is not None
    assert at.rule.endswith(f"denies c.test at {_PUBLIC} port 443 (deny 93.184.0.0/16:443)")


@pytest.mark.parametrize(
    ("denied", "address", "port", "is_denied"),
    [
        ("93.184.216.34", _PUBLIC, 443, True),
        ("93.184.216.0/24", _PUBLIC, 5432, True),
        ("93.184.216.0/24:443", _PUBLIC, 443, True),
        ("93.184.216.0/24:443", _PUBLIC, 80, False),
        ("93.184.216.0/24:443", _PUBLIC, None, False),
        ("93.184.216.0/24", _PUBLIC, None, True),
        ("93.184.217.0/24", _PUBLIC, 443, False),
        ("a.test", _PUBLIC, 443, False),
        ("::/0", _PUBLIC, 443, False),
        ("::/0", "2606:2800:220:1::1", 443, True),
        ("2606:2800::/32", "2606:2800:220:1::1", 443, True),
        ("93.184.216.34", f"::ffff:{_PUBLIC}", 443, True),
        ("93.184.216.34", f"::{_PUBLIC}", 443, True),
        ("93.184.216.34", f"::ffff:0:{_PUBLIC}", 443, True),
        ("93.184.216.34", f"64:ff9b::{_PUBLIC}", 443, True),
        ("93.184.216.34", "2002:5db8:d822::1", 443, True),
        ("93.184.216.34", "2001:0:5db8:d822::1", 443, True),
        ("93.184.216.34", "2606:2800::5db8:d822", 443, False),
    ],
)
def test_denied_addresses(denied: str, address: str, port: int | None, is_denied: bool) -> None:
    """An operator may list any of the forms; the guard of special addresses is not what refuses."""
    everything = AddressPolicy(["0.0.0.0/0", "::/0"])
    found = decision.denial_at(_open_but(denied), "a.test", address, port)
    assert (found is not None) is is_denied
    if port is not None:
        literal = decision.for_address(_open_but(denied), everything, address, port)
        assert literal.is_allowed is not is_denied
        assert decision.for_address(NetworkPolicy.of("open"), everything, address, port).is_allowed
        request = decision.for_request(_open_but(denied), address, port, "GET", "/")
        assert request.is_allowed is not is_denied


def test_what_is_denied_wins_over_a_rule_that_allows_it() -> None:
    allow = ["*.a.test", "93.184.216.0/24", "c.test:443"]
    policy = NetworkPolicy.of({"allow": allow, "deny": ["b.a.test", _PUBLIC, "c.test:443"]})
    assert not decision.for_name(policy, "b.a.test", 443).is_allowed
    assert decision.for_name(policy, "d.a.test", 443).is_allowed
    assert not decision.for_request(policy, "b.a.test", 443, "GET", "/").is_allowed
    assert not decision.for_address(policy, _LISTED, _PUBLIC, 443).is_allowed
    assert decision.for_address(policy, _LISTED, "93.184.216.35", 443).is_allowed
    # Denied at each port that a rule has for it, and so not asked for.
    assert not decision.for_name(policy, "c.test", None).is_allowed
    assert not decision.for_name(policy, "e.test", 443).is_allowed


def test_the_package_broker_is_no_name_that_can_be_denied() -> None:
    policy = NetworkPolicy.of({"mode": "open", "deny": ["*.internal"], "packages": True})
    assert decision.for_name(policy, BROKER, 80).is_allowed
