"""Images of a registry: Debian's registry server on loopback, filled by another tool, is asked.

The server is the witness of what it was asked; archives of `skopeo` are compared with ours.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellwall.images.archive import read_archive
from cellwall.images.credentials import read_credentials
from cellwall.images.image import Image, ImageInvalid, PullFailed
from cellwall.images.reference import InRegistry, parse
from cellwall.images.registry import Pull, Registries
from cellwall.model.errors import NotFound, UsageError
from conftest import require_command
from kit.images import archives, docker_registry
from kit.images.archives import config_of, digest, layer, member

LAYERS = [layer([member("a", b"one" * 1000)]), layer([member("b", b"two")])]
CONFIG = config_of(LAYERS, Env=["A=1"], WorkingDir="/app")


@dataclass
class Server:
    """A registry and what is in it."""

    port: int
    place: Path

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def registries(self, **more: Any) -> Registries:
        return Registries({self.host: f"http://{self.host}"}, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program, skopeo = require_command("docker-registry"), require_command("skopeo")
    place = tmp_path_factory.mktemp("registry")
    with docker_registry.serving(program, place) as port:
        made = Server(port, place)
        archive = archives.docker_archive(place / "image.tar", LAYERS, CONFIG)
        subprocess.run(
            [
                *(skopeo, "--insecure-policy", "copy", "--dest-tls-verify=false"),
                *(f"docker-archive:{archive}", f"docker://{made.host}/team/app:1"),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        yield made


def pull(registries: Registries, name: str, folder: Path) -> Image:
    meant = parse(name)
    assert isinstance(meant, InRegistry)
    return asyncio.run(Pull(registries, meant, folder).image())


def test_image_of_a_registry(server: Server, tmp_path: Path) -> None:
    image = pull(server.registries(), f"{server.host}/team/app:1", tmp_path)
    assert image.config.digest == digest(CONFIG)
    assert dict(image.config.environment) == {"A": "1"}
    assert [each.diff_id for each in image.layers] == [digest(each) for each in LAYERS]
    assert all(each.path.stat().st_size == each.size for each in image.layers)


def test_archive_of_another_tool_is_the_same_image(server: Server, tmp_path: Path) -> None:
    skopeo = require_command("skopeo")
    for kind in ("oci-archive", "docker-archive"):
        path = tmp_path / f"{kind}.tar"
        source = f"docker://{server.host}/team/app:1"
        words = [skopeo, "--insecure-policy", "copy", "--src-tls-verify=false", source]
        subprocess.run([*words, f"{kind}:{path}"], check=True, capture_output=True, timeout=120)
        image = read_archive(path)
        assert [each.diff_id for each in image.layers] == [digest(each) for each in LAYERS]
        assert image.config.working_dir == "/app"


def test_what_a_registry_does_not_have(server: Server, tmp_path: Path) -> None:
    for name in ("team/none:1", "team/app:2", f"team/app@sha256:{'a' * 64}"):
        with pytest.raises(NotFound, match="none of that name"):
            pull(server.registries(), f"{server.host}/{name}", tmp_path)


def test_registry_that_is_not_listed_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CELLWALL_IMAGE_REGISTRIES"):
        pull(Registries(), "python:3.12", tmp_path)


def test_image_above_the_bound_is_not_fetched(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ImageInvalid, match="above the operator's bound"):
        pull(server.registries(most_bytes=10), f"{server.host}/team/app:1", tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- a registry that misbehaves ------------------------------------------------------------------

Answer = tuple[int, dict[str, str], bytes]
BLOB = LAYERS[0]
MANIFEST = json.dumps(
    {"config": archives.described(config_of([BLOB])), "layers": [archives.described(BLOB)]}
).encode()


@contextmanager
def hostile(
    answer: Callable[[str, dict[str, str]], Answer | None],
) -> Iterator[tuple[int, list[Any]]]:
    """A server that answers as told, or as a good registry; its port and what it was asked."""
    asked: list[Any] = []
    good = {
        f"/v2/app/blobs/{digest(config_of([BLOB]))}": config_of([BLOB]),
        f"/v2/app/blobs/{digest(BLOB)}": BLOB,
        "/v2/app/manifests/1": MANIFEST,
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked.append((self.path, headers.get("authorization")))
            path = self.path.partition("?")[0]
            said = answer(self.path, headers)
            if said is None:
                said = (200, {}, good[path]) if path in good else (404, {}, b"")
            status, fields, body = said
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **fields}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield served.server_address[1], asked
        finally:
            served.shutdown()
            thread.join()


def _from(port: int, folder: Path, credentials: str = "") -> Image:
    registries = Registries({f"127.0.0.1:{port}": f"http://{credentials}127.0.0.1:{port}"})
    return pull(registries, f"127.0.0.1:{port}/app:1", folder)


def test_good_answers_are_taken(tmp_path: Path) -> None:
    """The control of all that follows."""
    with hostile(lambda _path, _headers: None) as (port, _):
        assert _from(port, tmp_path).layers[0].diff_id == digest(BLOB)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/blobs/" + digest(BLOB), BLOB[:-1]),
        ("/blobs/" + digest(BLOB), BLOB[:-1] + b"x"),
        ("/blobs/" + digest(BLOB), BLOB + b"x"),
        ("/blobs/" + digest(config_of([BLOB])), config_of(LAYERS)),
        ("/manifests/1", b"[]"),
        ("/manifests/1", b'{"config": {"digest": "sha256:../../x", "size": 1}, "layers": []}'),
        ("/manifests/1", b'{"manifests": []}'),
        ("/manifests/1", b" " * (5 << 20)),
    ],
    ids=["short", "changed", "long", "config", "list", "digest", "no-images", "large"],
)
def test_bytes_that_are_not_what_was_named(tmp_path: Path, path: str, body: bytes) -> None:
    with (
        hostile(lambda asked, _: (200, {}, body) if asked.endswith(path) else None) as (port, _),
        pytest.raises(ImageInvalid),
    ):
        _from(port, tmp_path)


def test_token_goes_to_the_registry_and_not_along_a_redirect(tmp_path: Path) -> None:
    token = "Bearer the-token"
    with hostile(lambda _path, _headers: None) as (other, asked_there):

        def answer(path: str, headers: dict[str, str]) -> Answer | None:
            if path.startswith("/token"):
                assert "scope=repository%3Aapp%3Apull" in path
                return 200, {}, b'{"token": "the-token"}'
            if headers.get("authorization") != token:
                realm = f'Bearer realm="http://127.0.0.1:{port}/token",service="here"'
                return 401, {"WWW-Authenticate": realm}, b""
            if path.endswith(digest(BLOB)):
                return 307, {"Location": f"http://127.0.0.1:{other}{path}"}, b""
            return None

        with hostile(answer) as (port, asked):
            _from(port, tmp_path, "me:secret@")
        with_credentials = [path for path, said in asked if said and said.startswith("Basic")]
        assert [path.partition("?")[0] for path in with_credentials] == ["/token"]
        assert [said for _, said in asked_there] == [None]
        assert ("/v2/app/manifests/1", token) in asked


def test_token_service_without_end(tmp_path: Path) -> None:
    def answer(path: str, headers: dict[str, str]) -> Answer | None:
        if path.startswith("/token"):
            return 200, {}, b'{"token": "' + b"x" * (5 << 20) + b'"}'
        realm = f'Bearer realm="http://127.0.0.1:{port}/token",service="here"'
        return 401, {"WWW-Authenticate": realm}, b""

    with hostile(answer) as (port, _), pytest.raises(ImageInvalid, match="too large"):
        _from(port, tmp_path)


def test_basic_credentials(tmp_path: Path) -> None:
    def answer(_path: str, headers: dict[str, str]) -> Answer | None:
        if headers.get("authorization") == "Basic bWU6c2VjcmV0":
            return None
        return 401, {"WWW-Authenticate": 'Basic realm="here"'}, b""

    with hostile(answer) as (port, _):
        _from(port, tmp_path, "me:secret@")
        with pytest.raises(PullFailed, match="asks for credentials") as caught:
            _from(port, tmp_path)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "where", ["ftp://127.0.0.1/x", "file:///etc/passwd", "/v2/app/manifests/1"]
)
def test_redirects_that_lead_nowhere(tmp_path: Path, where: str) -> None:
    def answer(path: str, _headers: dict[str, str]) -> Answer | None:
        return (302, {"Location": where}, b"") if "manifests" in path else None

    with hostile(answer) as (port, asked), pytest.raises(PullFailed, match="redirects"):
        _from(port, tmp_path)
    assert len(asked) <= 6


def test_transfer_that_breaks_is_tried_again(tmp_path: Path) -> None:
    broken = [2]

    def answer(path: str, _headers: dict[str, str]) -> Answer | None:
        if path.endswith(digest(BLOB)) and broken[0]:
            broken[0] -= 1
            return 200, {"Content-Length": str(len(BLOB))}, BLOB[:100]
        return None

    with hostile(answer) as (port, asked):
        image = _from(port, tmp_path)
    assert hashlib.sha256(image.layers[0].path.read_bytes()).hexdigest() == digest(BLOB)[7:]
    assert sum(path.endswith(digest(BLOB)) for path, _ in asked) == 3


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_registry_that_is_busy_is_asked_again(tmp_path: Path, status: int) -> None:
    busy = [2]

    def answer(path: str, _headers: dict[str, str]) -> Answer | None:
        if "manifests" in path and busy[0]:
            busy[0] -= 1
            return status, {"Retry-After": "0"}, b""
        return None

    with hostile(answer) as (port, asked):
        assert _from(port, tmp_path).layers[0].diff_id == digest(BLOB)
    assert sum("manifests" in path for path, _ in asked) == 3


def test_registry_that_stays_busy_is_left_alone(tmp_path: Path) -> None:
    with (
        hostile(lambda _path, _headers: (429, {"Retry-After": "0"}, b"")) as (port, asked),
        pytest.raises(PullFailed, match="status 429"),
    ):
        _from(port, tmp_path)
    assert len(asked) == 3


def test_token_that_expires_is_asked_for_once_more(tmp_path: Path) -> None:
    tokens: list[str] = []

    def answer(path: str, headers: dict[str, str]) -> Answer | None:
        if path.startswith("/token"):
            tokens.append(f"token-{len(tokens)}")
            return 200, {}, json.dumps({"token": tokens[-1]}).encode()
        is_new = path.endswith(digest(BLOB))  # the first token has expired by then
        wanted = "Bearer token-1" if is_new else "Bearer token-0"
        if headers.get("authorization") != wanted:
            realm = f'Bearer realm="http://127.0.0.1:{port}/token",service="here"'
            return 401, {"WWW-Authenticate": realm}, b""
        return None

    with hostile(answer) as (port, _):
        _from(port, tmp_path)
    assert len(tokens) == 2


def test_broken_transfer_is_continued(tmp_path: Path) -> None:
    ranges: list[str | None] = []

    def answer(path: str, headers: dict[str, str]) -> Answer | None:
        if not path.endswith(digest(BLOB)):
            return None
        ranges.append(headers.get("range"))
        if len(ranges) == 1:
            return 200, {"Content-Length": str(len(BLOB))}, BLOB[:100]
        part = {"Content-Range": f"bytes 100-{len(BLOB) - 1}/{len(BLOB)}"}
        return 206, part, BLOB[100:]

    with hostile(answer) as (port, _):
        image = _from(port, tmp_path)
    assert ranges == [None, "bytes=100-"]
    assert image.layers[0].path.read_bytes() == BLOB


def test_other_part_than_the_one_asked_for_is_no_blob(tmp_path: Path) -> None:
    def answer(path: str, headers: dict[str, str]) -> Answer | None:
        if not path.endswith(digest(BLOB)):
            return None
        if headers.get("range") is None:
            return 200, {"Content-Length": str(len(BLOB))}, BLOB[:100]
        return 206, {"Content-Range": f"bytes 0-99/{len(BLOB)}"}, BLOB[:100]

    with hostile(answer) as (port, _), pytest.raises((ImageInvalid, PullFailed)):
        _from(port, tmp_path)


def test_public_registry_leads_to_no_private_address(tmp_path: Path) -> None:
    """127.0.0.1 stands for a public address here, and 127.0.0.2 for one inside."""

    def pulled(port: int, permits: Callable[[str], bool]) -> Image:
        host = f"127.0.0.1:{port}"
        return pull(Registries({host: f"http://{host}"}, permits=permits), f"{host}/app:1", folder)

    def answer(path: str, _headers: dict[str, str]) -> Answer | None:
        if path.endswith(digest(BLOB)):
            return 307, {"Location": f"http://127.0.0.2:{inside}{path}"}, b""
        return None

    folder = tmp_path
    with _on("127.0.0.2") as (inside, asked), hostile(answer) as (port, _):
        with pytest.raises(PullFailed, match="not public"):
            pulled(port, lambda address: address == "127.0.0.1")
        assert asked == []
        pulled(port, lambda address: address in {"127.0.0.1", "127.0.0.2"})  # the control
        assert len(asked) == 1


@contextmanager
def _on(address: str) -> Iterator[tuple[int, list[str]]]:
    """A server that has the blob, at another address of this machine."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(BLOB)))
            self.end_headers()
            self.wfile.write(BLOB)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer((address, 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield served.server_address[1], asked
        finally:
            served.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "body",
    [
        MANIFEST[:-1] + b', "manifests": []}',
        MANIFEST[:-1] + b', "config": {}}',
        MANIFEST.replace(b'"size"', b'"size": 1, "size"', 1),
    ],
    ids=["both", "twice", "twice-inside"],
)
def test_documents_that_two_readers_take_differently(tmp_path: Path, body: bytes) -> None:
    with (
        hostile(lambda path, _: (200, {}, body) if "manifests" in path else None) as (port, _),
        pytest.raises(ImageInvalid, match=r"twice|in one"),
    ):
        _from(port, tmp_path)


def test_credentials_of_a_file(tmp_path: Path) -> None:
    def answer(_path: str, headers: dict[str, str]) -> Answer | None:
        if headers.get("authorization") == "Basic bWU6c2VjcmV0":
            return None
        return 401, {"WWW-Authenticate": 'Basic realm="here"'}, b""

    with hostile(answer) as (port, _):
        host = f"127.0.0.1:{port}"
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"auths": {host: {"auth": "bWU6c2VjcmV0"}}}), encoding="ascii")
        path.chmod(0o644)
        with pytest.raises(UsageError, match="others may read it"):
            read_credentials(str(path))
        path.chmod(0o600)
        registries = Registries({host: f"http://{host}"}, credentials=read_credentials(str(path)))
        assert "secret" not in repr(registries)
        pull(registries, f"{host}/app:1", tmp_path)
