"""What a server inside tries on who stands before it, and what would come to it by itself.

The attacker is a program inside, and its tenant, who sends the address of his port to others. The
witnesses are nginx in front, and what the server inside was told, which it shows.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from conftest import require_capability
from kit.server.echoing import raw, served
from kit.server.nginx_front import NAME, Proxy, proxy_of
from kit.servers import ADMIN, ALICE, BOB, Server, error_of, read_all, running

_SECRET = b"for the proxy alone"
_STEERS = (
    b"X-Accel-Redirect: /protected/f.txt\r\nX-Sendfile: /etc/hostname\r\n"
    b"X-Lighttpd-Send-File: /etc/hostname\r\nX-LiteSpeed-Location: /stats\r\n"
    b"X-Reproxy-URL: http://127.0.0.1/stats\r\nSurrogate-Control: max-age=9\r\n"
)
_ANSWER = b"HTTP/1.1 200 OK\r\nX-App-Own: yes\r\n%sContent-Length: 5\r\n\r\ninner" % _STEERS


@pytest.fixture(scope="module")
def inner(server: Server) -> tuple[str, str]:
    return served(server)


# -- outwards ------------------------------------------------------------------------------------


def test_nothing_that_steers_a_proxy_comes_out(server: Server, inner: tuple[str, str]) -> None:
    answer = server.client().get(inner[0] + raw(_ANSWER))
    assert (answer.text, answer.headers["x-app-own"]) == ("inner", "yes")
    steering = ("x-accel", "x-sendfile", "x-lighttpd", "x-litespeed", "x-reproxy", "surrogate")
    assert not [name for name in answer.headers if name.startswith(steering)]


def test_trailers_of_an_answer_are_no_headers(server: Server, inner: tuple[str, str]) -> None:
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Accel-Redirect, ETag\r\n"
    said += b"\r\n2\r\nok\r\n0\r\nX-Accel-Redirect: /protected/f.txt\r\nETag: late\r\n\r\n"
    head = f"GET {inner[0]}{raw(said)} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {ALICE}\r\n"
    answer = server.raw(f"{head}Connection: close\r\n\r\n".encode()).lower()
    assert b"\r\nok\r\n" in answer
    assert b"x-accel" not in answer
    assert b"late" not in answer


@pytest.fixture
def protected() -> Iterator[str]:
    """A location of nginx that only nginx itself can be sent to."""
    folder = Path(tempfile.mkdtemp(prefix="cellwall-protected-"))
    folder.chmod(0o755)
    (folder / "f.txt").write_bytes(_SECRET)
    yield f"location /protected/ {{ internal; alias {folder}/; }}"
    shutil.rmtree(folder)


def _asked(proxy: Proxy, path: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: {NAME}\r\nX-API-Key: {ALICE}\r\nConnection: close\r\n\r\n"
    return proxy.send(head.encode())


def test_nginx_is_not_sent_to_what_is_its_own(protected: str) -> None:
    """Control: the same answer of a server that nginx trusts sends it there."""
    require_capability("nginx", shutil.which("nginx") is not None, "apt-get install nginx-light")
    with _answering(_ANSWER) as trusted, running(allowed_hosts=[NAME]) as server:
        own = f"location /trusted {{ proxy_pass http://127.0.0.1:{trusted}; }}"
        with proxy_of(server, f"{protected} {own}") as proxy:
            assert _SECRET in _asked(proxy, "/trusted")
            assert b" 404 " in _asked(proxy, "/protected/f.txt")
            answer = _asked(proxy, served(server)[0] + raw(_ANSWER))
    assert answer.endswith(b"inner")
    assert b"X-App-Own: yes" in answer or b"x-app-own: yes" in answer
    assert _SECRET not in answer


def test_nginx_obeys_nothing_behind_it_even_if_it_came_out(protected: str) -> None:
    """The second wall: the shipped site over a server that lets everything pass."""
    require_capability("nginx", shutil.which("nginx") is not None, "apt-get install nginx-light")
    with _answering(_ANSWER) as leaking:
        server = Server(None, f"http://127.0.0.1:{leaking}", [], Path("/dev/null"))  # type: ignore[arg-type]
        with proxy_of(server, protected) as proxy:
            answer = _asked(proxy, "/any")
    assert answer.endswith(b"inner")
    assert _SECRET not in answer


class _answering:
    """A server on the host that answers every request with the same bytes; gives its port."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._serve, daemon=True).start()
        return int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with line:
                line.recv(65_536)
                line.sendall(self._answer)

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


# -- inwards -------------------------------------------------------------------------------------

_VISITORS = {
    "Cookie": "_oauth2_proxy=VICTIM; jupyter=VICTIM",
    "Authorization": "Basic VICTIM",
    "Cf-Access-Jwt-Assertion": "VICTIM",
    "X-Amzn-Oidc-Data": "VICTIM",
    "X-Auth-Request-Email": "VICTIM",
    "X-Forwarded-User": "VICTIM",
    "Remote-User": "VICTIM",
    "X-Real-Ip": "VICTIM",
    "Ssl-Client-Cert": "VICTIM",
}


def _signed(server: Server, path: str) -> dict[str, str]:
    sandbox = path.partition("/ports/")[0]
    return dict(server.client().post(f"{sandbox}/ports/sign", json={"port": 8000}).json())


def test_what_a_visitors_browser_and_proxy_add_stays_outside(
    server: Server, inner: tuple[str, str]
) -> None:
    """Control: what an application needs of the same request arrives."""
    url = _signed(server, inner[0])["url"]
    headers = {**_VISITORS, "Referer": url + "&page=2", "X-App-Own": "yes"}
    seen = server.client(None).get(url + "&page=1", headers=headers).json()
    assert seen["path"] == "/?page=1"
    assert seen["headers"]["x-app-own"] == "yes"
    assert seen["headers"]["referer"] == "http://localhost:8000/?page=2"
    assert "VICTIM" not in str(seen)


def test_authorization_goes_in_only_beside_a_header_of_ours(
    server: Server, inner: tuple[str, str]
) -> None:
    """Jupyter's `token …` beside our key; a link carries no header, so a browser's stays out."""
    own = {"Authorization": "token its-own"}
    seen = server.client().get(f"{inner[0]}/", headers=own).json()
    assert seen["headers"]["authorization"] == "token its-own"
    signed = _signed(server, inner[0])
    stranger = server.client(None)
    seen = stranger.get(f"{inner[0]}/", headers={"X-Cellwall-Token": signed["token"], **own}).json()
    assert seen["headers"]["authorization"] == "token its-own"
    assert "authorization" not in stranger.get(signed["url"], headers=own).json()["headers"]


@pytest.mark.parametrize("key", [ALICE, BOB])
def test_a_key_of_ours_never_goes_in(server: Server, inner: tuple[str, str], key: str) -> None:
    """Be it what lets the call in, or another one beside it. Control: a word of its own goes in."""
    token = _signed(server, inner[0])["token"]
    bearer = {"Authorization": f"Bearer {key}"}
    beside = [{"X-API-Key": ALICE}]
    if key == ALICE:  # the other tenant's would be who calls
        beside += [{}, {"X-Cellwall-Token": token}]
    for headers in beside:
        seen = server.client(None).get(f"{inner[0]}/", headers={**bearer, **headers})
        assert seen.status_code == 200
        assert key not in seen.text
    own = {"Authorization": "Bearer its-own", "X-API-Key": ALICE}
    seen = server.client(None).get(f"{inner[0]}/", headers=own)
    assert seen.json()["headers"]["authorization"] == "Bearer its-own"


_TELLS = """
import base64, hashlib, json, socketserver

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        head = [line.decode().strip() for line in iter(self.rfile.readline, b"\\r\\n")]
        key = next(line[19:] for line in head if line.lower().startswith("sec-websocket-key: "))
        digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        self.wfile.write(b"HTTP/1.1 101 S\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                         b"Set-Cookie: a=b\\r\\nX-Accel-Redirect: /x\\r\\n"
                         b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\\r\\n\\r\\n")
        text = json.dumps(head).encode()
        self.wfile.write(bytes([0x81, 126]) + len(text).to_bytes(2, "big") + text)
        self.rfile.read(1)

print("ready", flush=True)
socketserver.ThreadingTCPServer(("127.0.0.1", 8100), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def telling(server: Server, inner: tuple[str, str]) -> str:
    """A WebSocket's server inside, beside the other, that says with what it was asked."""
    client, sandbox = server.client(), inner[0].partition("/ports/")[0]
    client.put(f"{sandbox}/files", params={"path": "t.py"}, content=_TELLS).raise_for_status()
    body = {"argv": ["python", "t.py"], "background": True}
    made = client.post(f"{sandbox}/commands", json=body).json()
    events = f"{sandbox}/commands/{made['id']}/events"
    with client.stream("GET", events) as stream:
        assert any("ready" in line for line in stream.iter_lines())
    return f"ws://127.0.0.1:{server.port}{sandbox}/ports/8100/"


def test_websocket_tells_the_inside_nothing_of_the_visitor(server: Server, telling: str) -> None:
    sandbox = telling.partition(f":{server.port}")[2].partition("/ports/")[0]
    made = server.client().post(f"{sandbox}/ports/sign", json={"port": 8100}).json()
    url = f"{telling}?cellwall%5Ftoken={made['token']}&a=b"
    with connect(url, additional_headers={**_VISITORS, "X-App-Own": "yes"}) as line:
        told = json.loads(line.recv(timeout=10))
        assert line.response is not None
        answered = {name.lower() for name in line.response.headers}
    assert told[0] == "GET /?a=b HTTP/1.1"
    assert "x-app-own: yes" in map(str.lower, told)
    assert "VICTIM" not in str(told)
    assert made["token"] not in str(told)
    assert not answered & {"set-cookie", "x-accel-redirect"}


@pytest.mark.parametrize("name", ["cellwall_token", "%63ellwall_token", "cellwall%5Ftoken"])
def test_token_stays_outside_however_its_name_is_written(
    server: Server, inner: tuple[str, str], name: str
) -> None:
    signed = _signed(server, inner[0])
    url = f"{inner[0]}/?a=%2F&{name}={signed['token']}&b"
    seen = server.client(None).get(url)
    assert seen.status_code == 200
    assert seen.json()["path"] == "/?a=%2F&b"
    assert signed["token"] not in seen.text


# -- trailers of requests ------------------------------------------------------------------------

_BODY = b'{"code":"print(6*7)"}'
_HEAD = b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_CHUNKED = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (
    len(_BODY),
    _BODY,
)
_KEY = b"X-API-Key: " + ALICE.encode() + b"\r\n"


def test_key_in_a_trailer_is_none(server: Server) -> None:
    """Control: the same line in the head lets it in."""
    assert server.raw(_HEAD + _KEY + _CHUNKED + b"\r\n").startswith(b"HTTP/1.1 200 ")
    answer = server.raw(_HEAD + _CHUNKED + _KEY + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 401 "), answer


@pytest.mark.parametrize("name", ["Idempotency-Key", "Accept", "X-Request-Id", "Host", "Origin"])
def test_no_trailer_is_a_header(server: Server, name: str) -> None:
    """Beside a key: what stands behind the body changes nothing of how it is answered."""
    said = f"{name}: text/event-stream\r\n".encode()
    answer = server.raw(_HEAD + _KEY + _CHUNKED + said + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert b"content-type: application/json" in answer.lower()
    assert b"text/event-stream" not in answer


def test_trailer_behind_an_upgrade_that_is_not_served_is_none(server: Server) -> None:
    upgrade = b"Upgrade: h2c\r\n"
    closing = _CHUNKED.replace(b"Connection: close", b"Connection: Upgrade")
    answer = server.raw(_HEAD + upgrade + closing + _KEY + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 401 "), answer


def test_head_of_the_next_request_counts_again(server: Server) -> None:
    """What is not taken is the trailer, not the headers of what follows on the connection."""
    keep = _CHUNKED.replace(b"Connection: close\r\n", b"")
    with server.connect() as sock:
        sock.settimeout(10)
        second = b"GET /stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + _KEY + b"\r\n"
        sock.sendall(_HEAD + _KEY + keep + b"X-A: b\r\n\r\n" + second)
        assert read_all(sock).count(b"HTTP/1.1 200 ") == 2


# -- tokens and their key ------------------------------------------------------------------------


def _made_key(server: Server) -> tuple[str, str]:
    made = server.client(ADMIN).post("/keys", json={"tenant": "alice", "scope": "run"}).json()
    return made["id"], made["key"]


def test_signed_addresses_end_with_the_key_that_signed_them(
    server: Server, inner: tuple[str, str], telling: str
) -> None:
    """Control: what another key of the tenant signed goes on."""
    sandbox = inner[0].partition("/ports/")[0]
    key_id, key = _made_key(server)
    owner = server.client(key)
    owner.put(f"{sandbox}/files", params={"path": "s.txt"}, content=b"s").raise_for_status()
    ask = {"path": "s.txt", "operation": "read"}
    urls = [
        owner.post(f"{sandbox}/ports/sign", json={"port": 8000}).json()["url"],
        owner.post(f"{sandbox}/files/sign", json=ask).json()["url"],
    ]
    token = owner.post(f"{sandbox}/ports/sign", json={"port": 8100}).json()["token"]
    stranger = server.client(None)
    assert [stranger.get(url).status_code for url in urls] == [200, 200]
    with connect(f"{telling}?cellwall_token={token}") as line:
        line.recv(timeout=10)
        server.client(ADMIN).delete(f"/keys/{key_id}").raise_for_status()
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=10)  # what is under way is cut
    refused = [stranger.get(url) for url in urls]
    assert [each.status_code for each in refused] == [404, 404]
    assert error_of(refused[0])["code"] == "not_found"
    with pytest.raises(InvalidStatus):
        connect(f"{telling}?cellwall_token={token}")
    assert stranger.get(_signed(server, inner[0])["url"]).status_code == 200
