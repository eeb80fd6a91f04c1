"""A network policy means what its caller wrote, and what is no policy is refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.model.errors import UsageError
from cellwall.model.network import NO_NETWORK, NetworkPolicy
from cellwall.model.secret import Secret, check_reachable


def _setting(fields: object, **more: object) -> dict[str, object]:
    return {"mode": "open", "headers": [{"host": "a.b", "set": fields, **more}]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        ("none", "none"),
        ("open", "open"),
        ([], "allow nothing"),
        ({}, "none"),
        ({"mode": "allow"}, "allow nothing"),
        ({"allow": []}, "allow nothing"),
        (["Example.ORG."], "allow example.org"),
        (["*.example.org:443,8443"], "allow *.example.org:443,8443"),
        (["192.0.2.1"], "allow 192.0.2.1/32"),
        (["192.0.2.0/24:5432"], "allow 192.0.2.0/24:5432"),
        (["2001:db8::/32"], "allow [2001:db8::/32]"),
        (["[2001:db8::/32]:5432"], "allow [2001:db8::/32]:5432"),
        (["a.b:443,80"], "allow a.b"),
        (["xn--bcher-kva.example"], "allow xn--bcher-kva.example"),
        ([{"host": "a.b", "ports": [80], "paths": ["/v1/"]}], "allow a.b:80"),
        ({"deny": []}, "none"),
        ({"mode": "none", "deny": []}, "none"),
        ({"allow": [], "deny": []}, "allow nothing"),
        ({"mode": "open", "deny": []}, "open"),
        ({"mode": "open", "deny": ["A.test.", "*.ru"]}, "open but not a.test, *.ru"),
        ({"mode": "open", "deny": ["192.0.2.1"]}, "open but not 192.0.2.1/32"),
        ({"mode": "open", "deny": ["::/0"]}, "open but not [::/0]"),
        ({"mode": "open", "deny": ["[2001:db8::/32]:25"]}, "open but not [2001:db8::/32]:25"),
        ({"mode": "open", "deny": ["a.test:443,80"]}, "open but not a.test:80,443"),
        ({"allow": ["*.a.test"], "deny": ["b.a.test"]}, "allow *.a.test but not b.a.test"),
        ({"allow": ["a.b"], "deny": [{"host": "c.d", "ports": None}]}, "allow a.b but not c.d"),
        ({"mode": "open", "deny": [{"host": "a.b", "ports": [5]}]}, "open but not a.b:5"),
        (_setting({"X-A": "b", "c": "d"}), "open with X-A, c at a.b"),
        (_setting({"X-A": "b"}, host="*.a.b", ports=[80]), "open with X-A at *.a.b:80"),
        ({"mode": "open", "headers": []}, "open"),
    ],
)
def test_what_callers_write(value: object, text: str) -> None:
    policy = NetworkPolicy.of(value)
    assert str(policy) == text
    assert NetworkPolicy.of(policy.as_json()) == policy
    assert policy.is_none == (text == "none")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("allow", "is no policy"),
        (_setting({"X-A": "b"}) | {"mode": "none"}, "there are no requests"),
        (_setting({}), "0 header fields"),
        (_setting("X-A: b"), "sets nothing"),
        (_setting({"X-A": "b"}, host="192.0.2.1"), "is no host name"),
        (_setting({"X-A": "b"}, paths=["/"]), "unknown name 'paths'"),
        (_setting({"X A": "b"}), "is no name of a header field"),
        (_setting({"X-A": "b\r\nX-C: d"}), "cannot be in a header field"),
        (_setting({"X-A": ""}), "cannot be in a header field"),
        (_setting({"X-A": 1}), "cannot be in a header field"),
        (_setting({"hOst": "c"}), "says where a request goes"),
        (_setting({"Transfer-Encoding": "chunked"}), "says where a request goes"),
        (_setting({f"X-{each}": "a" for each in range(33)}), "33 header fields"),
        ("everything", "is no policy"),
        (5, "is no policy"),
        (b"none", "is no policy"),
        (["*"], "is no host name"),
        (["*.org"], "too wide"),
        (["a.*.org"], "is no host name"),
        (["http://example.org"], "is a URL"),
        (["user@example.org"], "is a URL"),
        (["0.0.0.0/0"], "every address"),
        (["::/0"], "every address"),
        (["192.0.2.1/24"], "host bits"),
        (["ex\u0430mple.org"], "look alike"),
        (["exa mple.org"], "is no host name"),
        (["-a.org"], "is no host name"),
        (["a..org"], "is no host name"),
        ([""], "is no host name"),
        (["a.org:0"], "port"),
        (["a.org:65536"], "port"),
        (["a.org:http"], "port"),
        (["a.org:"], "port"),
        (["[2001:db8::/32"], "is no rule"),
        (["0x7f.0.0.1"], "odd spelling"),
        (["127.1"], "odd spelling"),
        (["2130706433"], "odd spelling"),
        (["a.0x7f"], "odd spelling"),
        ([5], "is no rule"),
        ([{"ports": [80]}], "is no text"),
        ([{"host": "a.b", "port": 80}], "unknown name"),
        ([{"host": "a.b", "ports": [80], "paths": ["x"]}], "paths"),
        ([{"host": "a.b", "ports": [80], "methods": ["get"]}], "methods"),
        ([{"host": "a.b", "ports": [80], "methods": "GET"}], "is no list"),
        ({"allow": "a.b"}, "is no list"),
        ({"mode": "open", "allow": ["a.b"]}, "takes no rules"),
        ({"mode": "none", "allow": ["a.b"]}, "takes no rules"),
        ({"mode": "some"}, "not known"),
        ({"rules": []}, "unknown name"),
        ({"mode": "open", "connections": 0}, "out of bounds"),
        ({"mode": "open", "connections": True}, "out of bounds"),
        ({"mode": "open", "connections": 1001}, "out of bounds"),
        ({"mode": "open", "transfer_mb": 1.5}, "out of bounds"),
        ({"mode": "open", "rate_kb_s": 0}, "out of bounds"),
        (["a.b"] * 1001, "1001 rules"),
        ({"deny": ["a.b"]}, "deny: nothing is allowed"),
        ({"mode": "none", "deny": ["a.b"]}, "deny: nothing is allowed"),
        ({"allow": [], "deny": ["a.b"]}, "deny: nothing is allowed"),
        ({"packages": True, "deny": ["a.b"]}, "deny: nothing is allowed"),
        ({"mode": "open", "deny": "a.b"}, "deny: .* is no list"),
        ({"mode": "open", "deny": ["*"]}, "deny: .* is no host name"),
        ({"mode": "open", "deny": ["0.0.0.0/0"]}, "deny: .* every IPv4 address"),
        ({"mode": "open", "deny": ["192.0.2.1/24"]}, "deny: .* host bits"),
        ({"mode": "open", "deny": ["::ffff:192.0.2.0/120"]}, "deny: .* are IPv4 addresses"),
        ({"mode": "open", "deny": ["127.1"]}, "deny: .* odd spelling"),
        ({"mode": "open", "deny": ["http://a.b"]}, "deny: .* is a URL"),
        ({"mode": "open", "deny": ["a.b:0"]}, "deny: .* port"),
        ({"mode": "open", "deny": [{"host": "a.b", "paths": ["/"]}]}, "deny: unknown name"),
        ({"mode": "open", "deny": [{"host": "a.b", "ports": []}]}, "deny: .* 0 ports"),
        ({"mode": "open", "deny": ["a.b"] * 1001}, "deny: 1001 rules"),
    ],
)
def test_what_is_no_policy(value: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        NetworkPolicy.of(value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("ports", "opens"), [(None, True), ([80], False), ([8443], True), ([80, 443], True)]
)
def test_a_rule_for_requests_opens_tls(ports: list[int] | None, *, opens: bool) -> None:
    rule = {"host": "a.b", "ports": ports, "methods": ["GET"]}
    assert NetworkPolicy.of([rule, "c.d"]).opens_tls is opens
    assert not NetworkPolicy.of([{"host": "a.b", "ports": ports}]).opens_tls


def test_what_is_denied_is_no_name_that_a_secret_may_be_for() -> None:
    policy = NetworkPolicy.of({"mode": "open", "deny": ["a.test:443", "*.b.test"]})
    assert not policy.allows_name("a.test", 443)
    assert policy.allows_name("a.test", 8443)
    assert not policy.allows_name("c.b.test", 443)
    assert policy.allows_name("b.test", 443)
    secret = Secret("KEY", "value-of-the-key", hosts=["a.test"])
    with pytest.raises(UsageError, match="which the network policy denies") as caught:
        check_reachable([secret], policy)
    assert "a.test:443" in str(caught.value.remedy)


def test_the_default_is_no_network() -> None:
    assert NetworkPolicy() == NO_NETWORK
    assert NO_NETWORK.as_json() == {"mode": "none"}


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_a_usage_error(text: str) -> None:
    try:
        policy = NetworkPolicy.of([text])
    except UsageError:
        return
    assert NetworkPolicy.of(policy.as_json()) == policy
    (rule,) = policy.rules
    assert bool(rule.name) != (rule.network is not None)


@pytest.mark.parametrize(
    ("rule", "name", "fits"),
    [
        ("example.org", "example.org", True),
        ("example.org", "a.example.org", False),
        ("example.org", "example.org.evil.test", False),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "evilexample.org", False),
        ("*.example.org", ".example.org", False),
    ],
)
def test_names_that_a_rule_means(rule: str, name: str, fits: bool) -> None:
    (found,) = NetworkPolicy.of([rule]).rules
    assert found.matches_name(name) is fits


def test_the_last_field_of_a_name_wins_at_the_ports_it_is_for() -> None:
    first = {"host": "*.a.b", "set": {"X-A": "1", "X-B": "2"}}
    then = {"host": "c.a.b", "ports": [443], "set": {"x-a": "third"}}
    policy = NetworkPolicy.of({"mode": "open", "headers": [first, then]})
    assert policy.headers_for("c.a.b", 443) == [("x-a", "third"), ("X-B", "2")]
    assert policy.headers_for("c.a.b", 80) == [("X-A", "1"), ("X-B", "2")]
    assert policy.headers_for("c.a.b", 8080) == policy.headers_for("a.b", 443) == []
    assert "third" not in repr(policy.headers)
