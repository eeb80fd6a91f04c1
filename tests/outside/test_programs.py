"""Programs that know nothing of us reach an allowed server, unmodified, over TLS where they can."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import require_command
from kit.outside import libraries
from kit.outside.servers import Sink, WebServer
from kit.outside.world import World

pytestmark = pytest.mark.root

_ROOM = {"memory_mb": 2048, "processes": 200, "wall_s": 60, "cpu_s": 60, "open_files": 1024}


def _shell(outside: World, command: str, port: int) -> str:
    return outside.run(
        command.replace("PORT", str(port)),
        [f"web.test:{port}"],
        language="bash",
        files={"ca.pem": outside.authority},
        limits=_ROOM,
        timeout=60,
    )


_BY_TLS = {
    "curl": "curl -sS --cacert ca.pem https://web.test:PORT/a",
    "wget": "wget -q -O - --ca-certificate=ca.pem https://web.test:PORT/a",
    "node": "NODE_EXTRA_CA_CERTS=ca.pem node -e "
    "'fetch(\"https://web.test:PORT/a\").then(r => r.text()).then(t => process.stdout.write(t))'",
    "python3": "SSL_CERT_FILE=ca.pem python3 -c 'import urllib.request as u; "
    'print(u.urlopen("https://web.test:PORT/a").read().decode(), end="")\'',
    "openssl": "printf 'GET /a HTTP/1.0\\r\\nHost: web.test\\r\\n\\r\\n' | openssl s_client -quiet "
    "-CAfile ca.pem -verify_return_error -servername web.test -connect web.test:PORT 2>/dev/null "
    "| tail -n 1",
}


@pytest.mark.parametrize("name", _BY_TLS)
def test_a_program_over_tls(outside: World, name: str) -> None:
    require_command(name)
    port = outside.tls_web.port
    assert _shell(outside, _BY_TLS[name], port) == "GET /a 0"
    # The control: without a rule for it the same command fails.
    done = outside.runner.call(
        lambda engine, _put: engine.run(
            _BY_TLS[name].replace("PORT", str(port)),
            language="bash",
            files={"ca.pem": outside.authority},
            network=["other.test"],
            limits=_ROOM,
        )
    )
    assert "GET /a 0" not in done.stdout


@pytest.mark.parametrize("name", libraries.PROGRAMS)
def test_a_library_over_tls(outside: World, name: str) -> None:
    """With the template that has them; each finds the authority by the usual variables."""
    port = outside.tls_web.port
    code = f"URL, HEADERS = 'https://web.test:{port}/a', {{}}\n{libraries.PROGRAMS[name]}"
    trust = {"SSL_CERT_FILE": "/home/user/ca.pem", "REQUESTS_CA_BUNDLE": "/home/user/ca.pem"}
    given: dict[str, Any] = {
        "template": "data",
        "files": {"ca.pem": outside.authority},
        "env": trust,
    }
    found = outside.run(code, [f"web.test:{port}"], limits=_ROOM, timeout=60, **given)
    assert found == "GET /a 0\n"
    # The control: without a rule for it the same program fails.
    refused = outside.runner.call(
        lambda engine, _put: engine.run(code, network=["other.test"], limits=_ROOM, **given)
    )
    assert refused.outcome.verdict == "exception"
    assert refused.stdout == ""


def test_a_proxy_of_the_environment(outside: World) -> None:
    """What is told of a proxy uses ours: CONNECT for TLS, whole URLs for plain HTTP."""
    proxy = "export http_proxy=http://127.0.0.1:3128 https_proxy=http://127.0.0.1:3128\n"
    tls, plain = outside.tls_web.port, outside.web.port
    found = outside.run(
        f"{proxy}curl -sS --cacert ca.pem https://web.test:{tls}/a; echo\n"
        f"curl -sS http://web.test:{plain}/b; echo\n"
        f"curl -sS -o /dev/null -w '%{{http_code}}' http://other.test:{plain}/c",
        [f"web.test:{tls},{plain}"],
        language="bash",
        files={"ca.pem": outside.authority},
        limits=_ROOM,
    )
    assert found.split("\n") == ["GET /a 0", "GET /b 0", "403"]


def test_javas_client(outside: World) -> None:
    code = """
import java.net.URI;
import java.net.http.*;
public class Main {
  public static void main(String[] a) throws Exception {
    var request = HttpRequest.newBuilder(URI.create("http://web.test:PORT/java")).build();
    var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    System.out.print(answer.body());
  }
}
""".replace("PORT", str(outside.web.port))
    rule = [f"web.test:{outside.web.port}"]
    found = outside.run(code, rule, language="java", limits=_ROOM, timeout=60)
    assert found == "GET /java 0"


def test_gos_client(outside: World) -> None:
    code = """
package main
import ("fmt"; "io"; "net/http")
func main() {
  answer, err := http.Get("http://web.test:PORT/go")
  if err != nil { panic(err) }
  body, _ := io.ReadAll(answer.Body)
  fmt.Print(string(body))
}
""".replace("PORT", str(outside.web.port))
    rule = [f"web.test:{outside.web.port}"]
    found = outside.run(code, rule, language="go", limits=_ROOM, timeout=60)
    assert found == "GET /go 0"


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[WebServer]:
    """A repository behind a plain web server."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        argv = ["git", *who, *words]
        subprocess.run(argv, check=True, env=environment, cwd=tmp_path, capture_output=True)

    git("init", "-q", "work")
    (tmp_path / "work" / "read.me").write_text("of the outside\n")
    git("-C", "work", "add", ".")
    git("-C", "work", "commit", "-q", "-m", "first")
    git("clone", "-q", "--bare", "work", "bare.git")
    git("-C", "bare.git", "update-server-info")
    bare = tmp_path / "bare.git"
    pages = {
        f"/bare.git/{path.relative_to(bare)}": path.read_bytes()
        for path in bare.rglob("*")
        if path.is_file()
    }
    with WebServer(pages=pages) as server:
        server.are_others_missing = True
        yield server


def test_git(outside: World, repository: WebServer) -> None:
    found = outside.run(
        f"git clone -q http://web.test:{repository.port}/bare.git && cat bare/read.me",
        [f"web.test:{repository.port}"],
        language="bash",
        limits=_ROOM,
    )
    assert found == "of the outside\n"


def test_a_server_that_speaks_first(outside: World) -> None:
    """As mail servers, MySQL and SSH do: no byte of the program is waited for."""

    def greet(held: object) -> None:
        held.sendall(b"220 hello\r\n")  # type: ignore[attr-defined]
        held.sendall(held.recv(100))  # type: ignore[attr-defined]

    with Sink(greet) as server:
        found = outside.run(
            f"import socket; s = socket.create_connection(('web.test', {server.port}), 5)\n"
            "print(s.recv(100)); s.sendall(b'EHLO a\\r\\n'); print(s.recv(100))",
            [f"web.test:{server.port}"],
        )
    assert found == "b'220 hello\\r\\n'\nb'EHLO a\\r\\n'\n"


def test_a_half_closed_stream_goes_on(outside: World) -> None:
    """The end of the program's side is passed on, and the answer still comes."""

    def count(held: object) -> None:
        size = 0
        while piece := held.recv(65536):  # type: ignore[attr-defined]
            size += len(piece)
        held.sendall(str(size).encode())  # type: ignore[attr-defined]

    with Sink(count) as server:
        for size in (5, 3_000_000):
            found = outside.run(
                f"import socket; s = socket.create_connection(('web.test', {server.port}), 5)\n"
                f"s.sendall(b'*' * {size}); s.shutdown(1); print(s.recv(100).decode())",
                [f"web.test:{server.port}"],
            )
            assert found == f"{size}\n"


def test_methods_and_paths(outside: World) -> None:
    rule = {"host": "web.test", "ports": [outside.web.port], "methods": ["GET"], "paths": ["/v1/"]}
    url = f"http://web.test:{outside.web.port}"
    found = outside.run(
        f"get() {{ curl -sS -o /dev/null -w '%{{http_code}} ' \"$@\"; }}\n"
        f"get {url}/v1/a; get -X POST {url}/v1/a; get {url}/v2/a\n"
        f"get --path-as-is {url}/v1/../v2/a\n"
        f"get {url}/v1/a -o /dev/null {url}/v2/b",  # two requests on one connection
        [rule],
        language="bash",
        limits=_ROOM,
    )
    assert found.split() == ["200", "403", "403", "403", "200", "403"]


def test_an_upgrade_passes(outside: World) -> None:
    """As of a WebSocket: after 101 the bytes are the two ends' own."""

    def switch(held: object) -> None:
        head = held.recv(4096)  # type: ignore[attr-defined]
        assert b"upgrade: websocket" in head.lower()
        held.sendall(  # type: ignore[attr-defined]
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\n\r\nhello"
        )
        held.sendall(held.recv(100).upper())  # type: ignore[attr-defined]

    with Sink(switch) as server:
        found = outside.run(
            f"import socket; s = socket.create_connection(('web.test', {server.port}), 5)\n"
            "s.sendall(b'GET / HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: Upgrade\\r\\n'\n"
            "          b'Upgrade: websocket\\r\\n\\r\\n')\n"
            "data = b''\n"
            "while b'hello' not in data: data += s.recv(1000)\n"
            "s.sendall(b'bytes'); print(s.recv(100).decode())",
            [f"web.test:{server.port}"],
        )
    assert found == "BYTES\n"
