"""What a node does with secrets: lent for one request of one tenant, and asked for before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellwall.cluster.gateway.routing import Way, way_of
from cellwall.cluster.node.lent import Lent, read
from cellwall.model.errors import UsageError
from cellwall.model.secret import Secret
from cellwall.server.core.errors import HttpError
from cellwall.server.core.named_secrets import secrets_of
from cellwall.server.core.request_context import ORIGIN, Origin

VALUE = "sk-proj-valueOfARequest4711"
SECRET = Secret("KEY", VALUE, hosts=["a.test"])


@pytest.fixture
def origin() -> Any:
    made = Origin("r1")
    token = ORIGIN.set(made)
    yield made
    ORIGIN.reset(token)


def test_loan_is_taken_once_and_by_its_tenants_request() -> None:
    lent = Lent()
    lent.put("moss", "id-1", (SECRET,))
    assert lent.take("fern", "id-1") == ()
    assert lent.take("moss", "id-2") == ()
    assert lent.take("moss", "id-1") == (SECRET,)
    assert lent.take("moss", "id-1") == ()


def test_loans_are_bounded_and_the_oldest_goes() -> None:
    lent = Lent()
    for number in range(1001):
        lent.put("moss", f"id-{number}", (SECRET,))
    assert lent.take("moss", "id-0") == ()
    assert lent.take("moss", "id-1") == (SECRET,)


def test_request_of_a_gateway_has_what_was_lent_and_asks_for_the_rest(origin: Origin) -> None:
    assert secrets_of([]) is None
    assert secrets_of(["KEY"]) == ["KEY"]  # a server's own: the store has it
    origin.lent = ()
    assert secrets_of([]) is None
    with pytest.raises(HttpError) as needed:
        secrets_of(["KEY", "OTHER"])
    assert (needed.value.status, needed.value.extra) == (428, {"names": ["KEY", "OTHER"]})
    origin.lent = (SECRET,)
    assert secrets_of(["KEY"]) == [SECRET]
    with pytest.raises(HttpError, match="OTHER"):
        secrets_of(["KEY", "OTHER"])


@pytest.mark.parametrize(
    "value",
    [
        VALUE,
        {},
        {"secrets": VALUE},
        {"secrets": [VALUE]},
        {"secrets": [{"name": "KEY", "value": f"{VALUE}\n"}]},
    ],
)
def test_what_is_no_gateways_word_is_refused_without_the_value(value: object) -> None:
    with pytest.raises(UsageError) as refused:
        read(json.dumps(value).encode())
    assert VALUE not in str(refused.value)
    good = {"name": "KEY", "value": VALUE, "hosts": ["a.test"], "places": ["header"]}
    (found,) = read(json.dumps({"secrets": [good]}).encode())
    assert found.reveal() == VALUE


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("/keys", Way("own", thing="key", path="/keys")),
        (
            "/keys/0123456789ab",
            Way("own", thing="key", name="0123456789ab", path="/keys/0123456789ab"),
        ),
        ("/secrets/A%20B", Way("own", thing="secret", name="A%20B", path="/secrets/A%20B")),
        ("/secrets/a/b", Way("refused")),
        ("/secretsx", Way("refused")),
        ("/node/secrets/abcd", Way("refused")),
    ],
)
def test_gateways_answer_for_what_they_keep(path: str, way: Way) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert way_of(method, path) == way
