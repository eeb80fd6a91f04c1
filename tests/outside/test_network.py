"""A sandbox with a network policy reaches what the policy names, and nothing else.

On every runtime that can enforce one. What a refused program is told is part of the contract.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from functools import partial

import pytest

from cellwall import EngineSettings, Sandbox
from cellwall.embedded import Runner
from cellwall.engine.engine import Engine
from cellwall.model.errors import HostUnsupported, UsageError
from conftest import Require
from kit.outside.servers import HOST, OUTSIDE
from kit.outside.world import World

pytestmark = pytest.mark.root

_GET = """
import json, sys, time, urllib.request
def get(url):
    begun = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        assert time.monotonic() - begun < 5
print(json.dumps([get(url) for url in {urls!r}]))
"""


def _get(sandbox: Sandbox, *urls: str) -> list[list[object]]:
    done = sandbox.run(_GET.format(urls=urls))
    assert done.outcome.verdict == "ok", (done.stderr, done.error)
    found: list[list[object]] = json.loads(done.stdout)
    return found


def test_a_name_is_reached_by_a_program_that_knows_no_proxy(any_outside: World) -> None:
    port = any_outside.web.port
    with any_outside.sandbox([f"web.test:{port}"]) as sandbox:
        assert _get(sandbox, f"http://web.test:{port}/a?b=c") == [[200, "GET /a?b=c 0"]]
    assert any_outside.web.requests[-1][2]["Host"] == f"web.test:{port}"


def test_a_one_shot_has_its_own_policy(any_outside: World) -> None:
    port = any_outside.web.port
    code = _GET.format(urls=[f"http://web.test:{port}/one"])
    assert json.loads(any_outside.run(code, [f"web.test:{port}"])) == [[200, "GET /one 0"]]
    ((kind, why),) = json.loads(any_outside.run(code, None))
    assert kind == "URLError"
    assert "Name or service not known" in why or "name resolution" in why


def test_what_no_rule_allows_is_refused_with_a_sentence(any_outside: World) -> None:
    port, other = any_outside.web.port, any_outside.tls_web.port
    with any_outside.sandbox([f"web.test:{port}"]) as sandbox:
        by_port, by_name, by_address, allowed = _get(
            sandbox,
            f"http://web.test:{other}/",
            f"http://other.test:{port}/",
            f"http://{OUTSIDE.replace('127', '128')}:{port}/",
            f"http://web.test:{port}/control",
        )
        usage = sandbox.network_usage()
    assert by_port[0] == 403
    assert f"allows web.test port {other}" in str(by_port[1])
    assert "Name or service not known" in str(by_name[1])
    assert by_address[0] == 403
    assert allowed == [200, "GET /control 0"]
    assert usage.refused == 4  # the name was asked for twice, for IPv4 and IPv6
    assert usage.connections == 1


def test_an_empty_list_allows_nothing(any_outside: World) -> None:
    port = any_outside.web.port
    nothing: list[object] = [[], {"mode": "allow"}, {"allow": []}]
    for empty in nothing:
        with any_outside.sandbox(empty) as sandbox:
            ((kind, _),) = _get(sandbox, f"http://web.test:{port}/")
            assert kind == "URLError"
            sandbox.set_network([f"web.test:{port}"])
            assert _get(sandbox, f"http://web.test:{port}/") == [[200, "GET / 0"]]


def test_a_star_means_names_below_and_not_the_name(any_outside: World) -> None:
    port = any_outside.web.port
    with any_outside.sandbox([f"*.wild.test:{port}"]) as sandbox:
        below, itself, beside = _get(
            sandbox,
            f"http://a.wild.test:{port}/",
            f"http://wild.test:{port}/",
            f"http://awild.test:{port}/",
        )
    assert below == [200, "GET / 0"]
    assert itself[0] == beside[0] == "URLError"


def test_loopback_stays_the_sandboxs_own(any_outside: World) -> None:
    """An operator's server on the host's loopback is reached by a name, never by that address."""
    port = any_outside.web.port
    with any_outside.sandbox([f"127.0.1.0/30:{port}", f"web.test:{port}"]) as sandbox:
        found = sandbox.run(f"import socket; socket.create_connection(({OUTSIDE!r}, {port}), 5)")
        assert "ConnectionRefusedError" in str(found.error)
        assert _get(sandbox, f"http://web.test:{port}/") == [[200, "GET / 0"]]


def test_open_reaches_any_name(any_outside: World) -> None:
    port = any_outside.web.port
    with any_outside.sandbox("open") as sandbox:
        assert _get(sandbox, f"http://other.test:{port}/x") == [[200, "GET /x 0"]]


def test_the_host_is_not_reached_by_any_name(any_outside: World) -> None:
    port = any_outside.host.port
    before = any_outside.host.connections
    for policy in ("open", [f"inner.test:{port}"]):
        with any_outside.sandbox(policy) as sandbox:
            ((kind, why),) = _get(sandbox, f"http://inner.test:{port}/")
            assert kind == "URLError", why
    assert any_outside.host.connections == before
    # The control: the same name reaches it once the operator's own address stands behind it.
    any_outside.names.records["inner.test"] = [OUTSIDE]
    try:
        with any_outside.sandbox("open") as sandbox:
            found = _get(sandbox, f"http://inner.test:{any_outside.web.port}/")
            assert found == [[200, "GET / 0"]]
    finally:
        any_outside.names.records["inner.test"] = [HOST]


def test_a_policy_changes_while_the_sandbox_runs(any_outside: World) -> None:
    port = any_outside.web.port
    url = f"http://web.test:{port}/"
    begun: object = (
        [] if any_outside.runtime == "gvisor" else None
    )  # it takes its devices at the start
    with any_outside.sandbox(begun) as sandbox:
        assert sandbox.network.mode == ("allow" if begun == [] else "none")
        assert _get(sandbox, url)[0][0] == "URLError"
        sandbox.set_network([f"web.test:{port}"])
        assert _get(sandbox, url) == [[200, "GET / 0"]]
        assert str(sandbox.network) == f"allow web.test:{port}"
        sandbox.set_network("none")
        assert _get(sandbox, url)[0][0] == "URLError"
        assert sandbox.network.mode == "none"


def test_a_change_closes_what_it_does_not_allow(any_outside: World) -> None:
    ports = f"{any_outside.sink.port}"
    with any_outside.sandbox([f"web.test:{ports}", f"other.test:{ports}"]) as sandbox:
        opened = sandbox.run(
            "import socket\n"
            f"one = socket.create_connection(('web.test', {ports}), 5)\n"
            f"two = socket.create_connection(('other.test', {ports}), 5)\n"
            "for each in (one, two): each.sendall(b'*hello\\n'); each.settimeout(0.3)\n"
        )
        assert opened.outcome.verdict == "ok", opened.error
        sandbox.set_network([f"other.test:{ports}"])
        told = sandbox.run(
            "def state(each):\n"
            "    try: return each.recv(1)\n"
            "    except TimeoutError: return 'open'\n"
            "    except ConnectionError: return b''\n"
            "one.settimeout(10)\n"
            "print([state(one), state(two)])"
        )
    assert told.stdout == "[b'', 'open']\n"


def test_the_pool_drops_no_policy(any_outside: World) -> None:
    port = any_outside.web.port
    code = _GET.format(urls=[f"http://web.test:{port}/", f"http://other.test:{port}/"])
    for _ in range(6):
        first, second = json.loads(any_outside.run(code, [f"web.test:{port}"]))
        assert (first[0], second[0]) == (200, "URLError")
        first, second = json.loads(any_outside.run(code, [f"other.test:{port}"]))
        assert (first[0], second[0]) == ("URLError", 200)
        assert {each[0] for each in json.loads(any_outside.run(code, None))} == {"URLError"}


def test_each_connection_is_recorded(any_outside: World) -> None:
    port = any_outside.web.port
    any_outside.records.clear()
    with any_outside.sandbox([f"web.test:{port}"]) as sandbox:
        _get(sandbox, f"http://web.test:{port}/recorded?secret=1", "http://no.test/")
        mine = sandbox.id
        usage = sandbox.network_usage()
    assert usage.connections == 1
    assert usage.sent_bytes > 50
    assert usage.received_bytes > 50
    deadline = time.monotonic() + 10
    while not {"close", "refused"} <= {r["event"] for s, r in any_outside.records if s == mine}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    closed = next(r for s, r in any_outside.records if s == mine and r["event"] == "close")
    assert (closed["host"], closed["port"], closed["address"]) == ("web.test", port, OUTSIDE)
    assert closed["rule"] == f"web.test:{port}"
    assert closed["requests"] == ["GET /recorded"]
    assert closed["sent_bytes"] > 50
    refused = next(r for s, r in any_outside.records if s == mine and r["event"] == "refused")
    assert refused["host"] == "no.test"


def test_usage_is_in_the_outcome(any_outside: World) -> None:
    port = any_outside.web.port
    with any_outside.sandbox([f"web.test:{port}"]) as sandbox:
        first = sandbox.run(_GET.format(urls=[f"http://web.test:{port}/"]))
        second = sandbox.run("1")
        assert first.outcome.usage.network is not None
        assert first.outcome.usage.network.connections == 1
        assert second.outcome.usage.network is not None
        assert second.outcome.usage.network.connections == 0
    with any_outside.sandbox(None) as sandbox:
        assert sandbox.run("1").outcome.usage.network is None


def test_more_than_the_operator_allows_is_refused() -> None:
    settings = EngineSettings(network="allow", pool_min=0, pool_max=0)
    with closing(Runner(partial(Engine, settings=settings))) as runner:
        with pytest.raises(UsageError, match="more than the operator allows"):
            Sandbox(runner=runner, network="open")
        with pytest.raises(UsageError, match="trust 'untrusted' means"):
            Sandbox(runner=runner, network=["example.org"], trust="untrusted")
        with Sandbox(runner=runner, network=["example.org"]) as sandbox:
            with pytest.raises(UsageError, match="more than the operator allows"):
                sandbox.set_network("open")
            assert str(sandbox.network) == "allow example.org"


def test_a_runtime_that_cannot_enforce_one_refuses() -> None:
    settings = EngineSettings(pool_min=0, pool_max=0, allow_process=True)
    with closing(Runner(partial(Engine, settings=settings))) as runner:
        with pytest.raises(HostUnsupported, match="cannot give a sandbox one") as caught:
            Sandbox(runner=runner, runtime="process", isolation="process", network=["a.test"])
        assert "jail" in str(caught.value.remedy)
        with (
            Sandbox(runner=runner, runtime="process", isolation="process") as sandbox,
            pytest.raises(HostUnsupported, match="cannot give a sandbox one"),
        ):
            sandbox.set_network(["a.test"])


def test_gvisor_without_a_network_gets_none_later(require: Require) -> None:
    require("runsc", shutil.which("runsc") is not None, "run: apt-get install runsc")
    settings = EngineSettings(pool_min=0, pool_max=0)
    with (
        closing(Runner(partial(Engine, settings=settings))) as runner,
        Sandbox(runner=runner, runtime="gvisor", isolation="kernel") as sandbox,
    ):
        with pytest.raises(HostUnsupported, match="takes its devices at the start"):
            sandbox.set_network(["a.test"])
        assert sandbox.network.mode == "none"
