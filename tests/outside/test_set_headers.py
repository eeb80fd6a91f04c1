"""Header fields that a policy sets reach the hosts they are for, in TLS and without, and no other.

With a witness outside that records what it got; the control is the same request to another name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cellwall import Sandbox
from cellwall.model.errors import UsageError
from kit.outside.servers import WebServer
from kit.outside.world import World

pytestmark = pytest.mark.root

VALUE = "a value, of two words"
ASK = """
import json, urllib.request
def ask(url, fields):
    with urllib.request.urlopen(urllib.request.Request(url, headers=fields), timeout=10) as answer:
        return answer.status
"""


@pytest.fixture(scope="module")
def witness(any_outside: World) -> Iterator[WebServer]:
    """A server with the certificate that the world's engine trusts, for web.test, other.test."""
    with WebServer(any_outside.tls) as made:
        yield made


def asked(sandbox: Sandbox, *urls: str) -> list[int]:
    """Ask each inside, with a field of its own; return the statuses."""
    fields = {"x-token": "its own", "X-Other": "stays"}
    calls = ", ".join(f"ask({url!r}, {fields!r})" for url in urls)
    done = sandbox.run(f"{ASK}\nprint(json.dumps([{calls}]))")
    assert done.outcome.verdict == "ok", (done.stderr, done.error)
    found: list[int] = json.loads(done.stdout)
    return found


def test_fields_are_set_in_requests_to_their_host_alone(
    any_outside: World, witness: WebServer
) -> None:
    plain, port = any_outside.web, witness.port
    opened = {"host": "other.test", "ports": [port], "methods": ["GET"]}
    names = [f"web.test:{plain.port},{port}", f"other.test:{plain.port}", opened]
    sets = {"host": "web.test", "ports": [plain.port, port], "set": {"X-Token": VALUE}}
    with any_outside.sandbox({"allow": names, "headers": [sets]}) as sandbox:
        urls = (f"http://web.test:{plain.port}/", f"https://web.test:{port}/")
        others = (f"http://other.test:{plain.port}/", f"https://other.test:{port}/")
        assert asked(sandbox, *urls, *others) == [200] * 4
    for server in (plain, witness):
        mine, other = (fields for _, _, fields in server.requests[-2:])
        assert [text for name, text in mine.items() if name.lower() == "x-token"] == [VALUE]
        assert [text for name, text in other.items() if name.lower() == "x-token"] == ["its own"]
        assert mine["X-Other"] == other["X-Other"] == "stays"


def test_a_change_of_the_policy_changes_the_fields_at_once(
    any_outside: World, witness: WebServer
) -> None:
    host = f"web.test:{witness.port}"

    def policy(value: str) -> dict[str, object]:
        sets = {"host": "web.test", "ports": [witness.port], "set": {"X-Token": value}}
        return {"allow": [host], "headers": [sets]}

    with any_outside.sandbox(policy("one")) as sandbox:
        for value in ("one", "two"):
            sandbox.set_network(policy(value))
            assert asked(sandbox, f"https://{host}/") == [200]
            assert witness.requests[-1][2]["X-Token"] == value


def test_a_sandbox_without_trust_gets_none_for_tls_later(outside: World) -> None:
    sets = {"host": "web.test", "set": {"X-Token": VALUE}}
    with outside.sandbox(["web.test"]) as sandbox:
        with pytest.raises(UsageError, match="made without trust") as caught:
            sandbox.set_network({"allow": ["web.test"], "headers": [sets]})
        sandbox.set_network({"allow": ["web.test"], "headers": [{**sets, "ports": [80]}]})
    assert VALUE not in str(caught.value)
