"""A secret is checked as it is given, shows its value to none, and keeps its shape inside."""

from __future__ import annotations

import copy
import json
import pickle  # noqa: TID251 - what is tested is that it cannot
from typing import Any

import pytest

from cellwall.model.errors import UsageError
from cellwall.model.network import NetworkPolicy
from cellwall.model.secret import Secret, check_reachable, made_up, secrets_of

_VALUE = "sk-proj-0123456789abcdefghijklmnopq"


def _secret(**changed: Any) -> Secret:
    given: dict[str, Any] = {"name": "KEY", "value": _VALUE, "hosts": ["api.test"]}
    return secrets_of([given | changed])[0]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"hosts": []}, "KEY has no host"),
        ({"hosts": "api.test"}, "are no list"),
        ({"hosts": ["*.api.test"]}, "not the name of one host"),
        ({"hosts": ["192.0.2.1"]}, "not the name of one host"),
        ({"hosts": ["api.test:80,443"]}, "more than one port"),
        ({"hosts": ["https://api.test"]}, "is a URL"),
        ({"hosts": [5]}, "is no text"),
        ({"name": "a-b"}, "is no name"),
        ({"name": ""}, "is no name"),
        ({"value": "short"}, "cannot stand in a header"),
        ({"value": "two\r\nX-Lines: 1234"}, "cannot stand in a header"),
        ({"value": " around 12345 "}, "cannot stand in a header"),
        ({"value": "a" * 4097}, "cannot stand in a header"),
        ({"places": ["body"]}, "places"),
        ({"places": "header"}, "places"),
        ({"placeholder": "short"}, "placeholder of KEY is none"),
        ({"placeholder": f"{_VALUE}-and-more"}, "has its value in it"),
        ({"places": ["header"], "host": "a"}, "unknown name"),
    ],
)
def test_what_is_no_secret_is_refused_without_its_value(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        _secret(**changed)
    assert caught.value.remedy
    for value in (_VALUE, changed.get("value", "")):
        assert not value or value not in f"{caught.value}{caught.value.remedy}"


def test_secrets_that_would_be_taken_for_one_another_are_refused() -> None:
    one = {"name": "A", "value": _VALUE, "hosts": ["a.test"], "placeholder": "x" * 16}
    with pytest.raises(UsageError, match="are alike"):
        secrets_of([one, one | {"name": "B", "placeholder": "x" * 20}])
    with pytest.raises(UsageError, match="given twice"):
        secrets_of([one, one | {"placeholder": "y" * 16}])
    with pytest.raises(UsageError, match="no list"):
        secrets_of({"KEY": _VALUE})


def test_no_text_or_copy_of_a_secret_has_its_value() -> None:
    secret = _secret()
    for text in (repr(secret), str(secret), f"{secret}", f"{[secret]!r}", repr(vars(Secret))):
        assert _VALUE not in text
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert secret.reveal() == _VALUE


@pytest.mark.parametrize(
    ("value", "beginning", "length"),
    [
        (_VALUE, "sk-proj-", len(_VALUE)),
        ("ghp_" + "a" * 36, "ghp_", 40),
        ("my-password-of-old", "", 20),
        ("sk-proj-abcdefg", "", 20),
        ("a" * 64, "", 64),
    ],
)
def test_a_placeholder_has_the_shape_and_nothing_else(
    value: str, beginning: str, length: int
) -> None:
    found = made_up(value)
    assert found.startswith(beginning)
    assert len(found) == length
    assert found != made_up(value)
    assert not any(value[i : i + 6] in found[len(beginning) :] for i in range(len(value) - 5))


def test_it_is_for_its_hosts_and_their_ports() -> None:
    secret = _secret(hosts=["API.test", "b.test:8443", "http://c.test", "http://d.test:8080"])
    assert secret.is_for("api.test", 443, is_plain=False)
    assert not secret.is_for("api.test", 443, is_plain=True)
    assert not secret.is_for("api.test", 8443, is_plain=False)
    assert secret.is_for("b.test", 8443, is_plain=False)
    assert secret.is_for("c.test", 80, is_plain=True)
    assert not secret.is_for("d.test", 8080, is_plain=False)
    same = Secret.of_proxy(json.loads(json.dumps(secret.for_proxy())))
    assert (same.hosts, same.placeholder, same.reveal()) == (
        secret.hosts,
        secret.placeholder,
        _VALUE,
    )


def test_a_host_that_the_policy_does_not_allow_is_refused() -> None:
    check_reachable([_secret()], NetworkPolicy.of(["*.a.test", "api.test"]))
    check_reachable([_secret()], NetworkPolicy.of("open"))
    for policy in (None, [], ["api.test:80"], ["other.test"]):
        with pytest.raises(UsageError, match=r"does not allow") as caught:
            check_reachable([_secret()], NetworkPolicy.of(policy))
        assert "api.test:443" in str(caught.value.remedy)
