"""What a policy denies is not reached, although its mode or its rules would let it pass.

On every runtime that can enforce a policy. Each refusal has a control: the same words reach the
same witness without the list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from cellwall import EngineSettings, Sandbox
from cellwall.embedded import Runner
from cellwall.engine.engine import Engine
from cellwall.model.errors import HostUnsupported
from kit.outside.servers import OUTSIDE, Sink
from kit.outside.world import World

pytestmark = pytest.mark.root

_SECOND = "127.0.1.2"
_TOOLS = r"""
import json, socket, ssl
named = [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")]
WAY = named[0] if named else "127.0.0.1"

def attempt(work):
    try:
        return work()
    except Exception as error:
        return type(error).__name__

def held_by(authority):
    held = socket.create_connection((WAY, 3128), 10)
    held.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    return held, held.recv(2000).decode("latin-1")

def get(held, host):
    held.sendall(f"GET /here HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    said = ""
    while not said.endswith("GET /here 0") and (piece := held.recv(2000)):
        said += piece.decode("latin-1")
        if said.startswith("HTTP/1.1 4"):
            break
    return said

def dialled(host, port):
    with socket.create_connection((host, port), 10) as held:
        return get(held, f"{host}:{port}")

def tunnel(authority, host=None):
    held, first = held_by(authority)
    with held:
        return get(held, host or authority) if " 200 " in first else first

def url(authority):
    with socket.create_connection((WAY, 3128), 10) as held:
        held.sendall(f"GET http://{authority}/here HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        return held.recv(2000).decode("latin-1")

def tls(authority, name):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    held, first = held_by(authority)
    with held:
        if " 200 " not in first:
            return first
        with context.wrap_socket(held, server_hostname=name) as over:
            return get(over, "web.test")
"""


def _said(sandbox: Sandbox, *calls: str) -> list[Any]:
    """Run each expression inside; each result is what came of it."""
    lines = "".join(f"found.append(attempt(lambda: {call}))\n" for call in calls)
    done = sandbox.run(f"{_TOOLS}\nfound = []\n{lines}print(json.dumps(found))", timeout=60)
    assert done.outcome.verdict == "ok", (done.stderr, done.error)
    answers: list[Any] = json.loads(done.stdout)
    return answers


def _open_but(*denied: str) -> dict[str, object]:
    return {"mode": "open", "deny": [*denied]}


@pytest.fixture
def second() -> Iterator[Sink]:
    """A witness at another address than the rest of the outside."""
    with Sink(address=_SECOND) as made:
        yield made


def test_a_denied_name_is_not_reached_in_an_open_network(any_outside: World) -> None:
    port = any_outside.web.port
    ways = (
        f"dialled('web.test', {port})",
        f"tunnel('web.test:{port}')",
        f"url('WEB.test.:{port}')",
        rf"tunnel(r'\119eb.test:{port}')",  # a resolver reads it as web.test
        f"dialled('a.wild.test', {port})",
    )
    with any_outside.sandbox("open") as sandbox:
        controls = _said(sandbox, *ways)
        assert all(each.startswith("HTTP/1.1 200") for each in controls), controls
        before = len(any_outside.web.requests)
        sandbox.set_network(_open_but("web.test", "*.wild.test"))
        by_name, by_tunnel, by_url, odd, below = _said(sandbox, *ways)
        beside = _said(sandbox, f"tunnel('other.test:{port}')", f"tunnel('wild.test:{port}')")
        rules = {each["rule"] for each in sandbox.network_log() if each["event"] == "refused"}
    assert by_name == below == "gaierror"
    for each in (by_tunnel, by_url):
        assert each.startswith("HTTP/1.1 403")
        assert f"denies web.test port {port} (deny web.test)" in each
    assert odd.startswith("HTTP/1.1 403")
    assert [each.startswith("HTTP/1.1 200") for each in beside] == [True, True]
    assert len(any_outside.web.requests) == before + 2
    assert "the sandbox's network policy denies web.test (deny web.test)" in rules
    assert "the sandbox's network policy denies a.wild.test (deny *.wild.test)" in rules


FORMS = [OUTSIDE, f"[::ffff:{OUTSIDE}]", "127.0.257", "2130706689", "web.test", "other.test"]


def test_a_denied_network_is_reached_by_no_name_and_no_spelling(any_outside: World) -> None:
    port = any_outside.web.port
    with any_outside.sandbox("open") as sandbox:
        controls = _said(sandbox, f"tunnel('{OUTSIDE}:{port}')", f"dialled('web.test', {port})")
        assert all(each.startswith("HTTP/1.1 200") for each in controls), controls
        before = len(any_outside.web.requests)
        sandbox.set_network(_open_but("127.0.1.0/31"))
        answers = _said(sandbox, *(f"tunnel('{form}:{port}')" for form in FORMS))
        (direct,) = _said(sandbox, f"dialled('web.test', {port})")
    assert [each[:12] for each in answers] == ["HTTP/1.1 403"] * len(FORMS), answers
    assert "(deny 127.0.1.0/31)" in answers[0]
    assert f"denies web.test at {OUTSIDE} port {port} (deny 127.0.1.0/31)" in answers[4]
    assert direct == "gaierror"
    assert len(any_outside.web.requests) == before


def test_a_name_leads_to_its_addresses_that_are_not_denied(
    any_outside: World, second: Sink
) -> None:
    any_outside.names.records["two.test"] = [OUTSIDE, _SECOND]
    said = f"held_by('two.test:{second.port}')[1]"
    with any_outside.sandbox(_open_but(f"{OUTSIDE}:{second.port}")) as sandbox:
        assert _said(sandbox, said)[0].startswith("HTTP/1.1 200")
        (opened,) = [each for each in sandbox.network_log() if each["event"] == "open"]
        assert opened["address"] == _SECOND
        sandbox.set_network(_open_but(OUTSIDE, f"{_SECOND}:{second.port}"))
        (refused,) = _said(sandbox, said)
        assert refused.startswith("HTTP/1.1 403")
    assert second.connections == 1


def test_a_denied_server_is_not_named_on_a_connection_to_an_address(any_outside: World) -> None:
    """In TLS and in each request, where the program dialled an address that is not denied."""
    plain, over = any_outside.web.port, any_outside.tls_web.port
    denied = (
        f"tls('{OUTSIDE}:{over}', 'web.test')",
        f"tunnel('{OUTSIDE}:{plain}', 'web.test')",
        f"tunnel('{OUTSIDE}:{plain}', 'Web.Test.:{plain}')",
    )
    others = (
        f"tls('{OUTSIDE}:{over}', 'other.test')",
        f"tunnel('{OUTSIDE}:{plain}', 'other.test')",
    )
    with any_outside.sandbox("open") as sandbox:
        controls = _said(sandbox, *denied)
        assert all(each.startswith("HTTP/1.1 200") for each in controls), controls
        before = len(any_outside.web.requests)
        sandbox.set_network(_open_but("web.test"))
        in_tls, *in_requests = _said(sandbox, *denied)
        assert in_tls.startswith("SSL"), in_tls
        assert all(each.startswith("HTTP/1.1 403") for each in in_requests), in_requests
        assert len(any_outside.web.requests) == before
        passed = _said(sandbox, *others)
        assert all(each.startswith("HTTP/1.1 200") for each in passed), passed


def test_what_is_denied_wins_over_the_rules(any_outside: World) -> None:
    port = any_outside.web.port
    ways = [f"tunnel('{name}:{port}')" for name in ("a.wild.test", "web.test", "other.test")]
    rules = [f"*.wild.test:{port}", f"web.test:{port}", f"other.test:{port}"]
    with any_outside.sandbox({"allow": rules}) as sandbox:
        assert all(each.startswith("HTTP/1.1 200") for each in _said(sandbox, *ways))
        sandbox.set_network({"allow": rules, "deny": ["a.wild.test", f"web.test:{port}"]})
        found = [each[:12] for each in _said(sandbox, *ways)]
        assert found == ["HTTP/1.1 403", "HTTP/1.1 403", "HTTP/1.1 200"]
        sandbox.set_network({"allow": rules, "deny": [f"{OUTSIDE}:{port + 1}"]})
        assert all(each.startswith("HTTP/1.1 200") for each in _said(sandbox, *ways))


_STATE = """
def state(each):
    try: return each.recv(1)
    except TimeoutError: return 'open'
    except ConnectionError: return b''
one.settimeout(10)
print([state(one), state(two)])
"""


def test_a_change_closes_what_it_denies(any_outside: World, second: Sink) -> None:
    """By the address that was dialled, by the name, and by the server that was named."""
    port = any_outside.sink.port
    any_outside.names.records["second.test"] = [_SECOND]
    begun = (
        f"one = socket.create_connection(('second.test', {second.port}), 5)\n"
        f"two = socket.create_connection(('web.test', {port}), 5)\n"
        "for each in (one, two): each.sendall(b'*hello\\n'); each.settimeout(0.3)\n"
    )
    for denied in (f"{_SECOND}:{second.port}", "second.test"):
        with any_outside.sandbox("open") as sandbox:
            done = sandbox.run(f"import socket\n{begun}")
            assert done.outcome.verdict == "ok", done.error
            sandbox.set_network(_open_but(denied))
            assert sandbox.run(_STATE).stdout == "[b'', 'open']\n", denied
    named = (
        f"one, _ = held_by('{OUTSIDE}:{any_outside.web.port}'); get(one, 'web.test')\n"
        f"two, _ = held_by('{OUTSIDE}:{any_outside.web.port}'); get(two, 'other.test')\n"
        "two.settimeout(0.3)\n"
    )
    with any_outside.sandbox("open") as sandbox:
        done = sandbox.run(f"{_TOOLS}\n{named}")
        assert done.outcome.verdict == "ok", done.error
        sandbox.set_network(_open_but("web.test"))
        assert sandbox.run(_STATE).stdout == "[b'', 'open']\n"


def test_a_one_shot_has_its_own_list(any_outside: World) -> None:
    port = any_outside.web.port
    code = f"{_TOOLS}\nprint(attempt(lambda: dialled('web.test', {port}))[:12])"
    for _ in range(3):  # out of the pool, which keeps none of it
        assert any_outside.run(code, _open_but("web.test")) == "gaierror\n"
        assert any_outside.run(code, "open") == "HTTP/1.1 200\n"


def test_a_refusal_is_on_record_with_what_denies(any_outside: World) -> None:
    port = any_outside.web.port
    any_outside.records.clear()
    with any_outside.sandbox(_open_but(f"web.test:{port}")) as sandbox:
        _said(sandbox, f"dialled('web.test', {port})")
        assert str(sandbox.network) == f"open but not web.test:{port}"
        assert sandbox.network_usage().refused == 1
        mine = sandbox.id
    deadline = time.monotonic() + 10
    while not (found := [r for s, r in any_outside.records if s == mine]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [found[0][name] for name in ("event", "host", "port", "way")] == [
        *("refused", "web.test", port, "direct")
    ]
    assert found[0]["rule"].endswith(f"(deny web.test:{port})")


def test_copies_and_what_comes_back_have_the_list(outside: World) -> None:
    """Forks, a sandbox of a snapshot, and one that was paused or on disk."""
    port = outside.web.port
    denied, beside = f"dialled('web.test', {port})", f"tunnel('other.test:{port}')"
    with outside.sandbox(_open_but("web.test")) as sandbox:
        kept = sandbox.snapshot("denied")
        (fork,) = sandbox.fork()
        assert fork.sandbox is not None, fork.error
        sandbox.hibernate()
        assert sandbox.status == "hibernated"
        restored = Sandbox.restore(kept.id, runner=outside.runner)
        with fork.sandbox, restored:
            for each in (sandbox, fork.sandbox, restored):
                assert str(each.network) == "open but not web.test"
                refused, reached = _said(each, denied, beside)
                assert refused == "gaierror"
                assert reached.startswith("HTTP/1.1 200")
        sandbox.pause()
        sandbox.set_network(_open_but("other.test"))
        reached, refused = _said(sandbox, denied, beside)
        assert reached.startswith("HTTP/1.1 200")
        assert "(deny other.test)" in refused


def test_a_runtime_that_enforces_no_policy_refuses_a_list() -> None:
    settings = EngineSettings(pool_min=0, pool_max=0, allow_process=True, network="open")
    with (
        closing(Runner(partial(Engine, settings=settings))) as runner,
        pytest.raises(HostUnsupported, match="cannot give a sandbox one"),
    ):
        Sandbox(runner=runner, runtime="process", network=_open_but("a.test"), isolation="process")
