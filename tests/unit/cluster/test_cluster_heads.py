"""Heads are written anew: one framing, no hop's headers, and nothing in the gateway's own name."""

from __future__ import annotations

import pytest

from cellwall.cluster.gateway.routing import Way, way_of
from cellwall.cluster.gateway.wire.heads import (
    RequestHead,
    ResponseHead,
    framing_for,
    request_bytes,
    response_bytes,
)

NODE = "a7c2"
ID = NODE + "b" * 26


def _sent(headers: list[tuple[bytes, bytes]], length: int | None = 0) -> list[bytes]:
    head = RequestHead(b"POST", b"/execute?x=1", headers, b"", length, dict(headers))
    said = [(b"cellwall-tenant", b"alice")]
    return request_bytes(head, said, frozenset({b"x-api-key"})).split(b"\r\n")


def test_what_a_client_says_in_the_gateways_name_is_left_out() -> None:
    lines = _sent([(b"cellwall-tenant", b"bob"), (b"cellwall-id", b"x"), (b"accept", b"*/*")])
    assert lines == [
        b"POST /execute?x=1 HTTP/1.1",
        b"accept: */*",
        b"cellwall-tenant: alice",
        b"",
        b"",
    ]


@pytest.mark.parametrize(
    "name",
    b"connection keep-alive te trailer upgrade expect x-api-key proxy-connection "
    b"transfer-encoding content-length".split(),
)
def test_header_of_one_connection_does_not_go_on(name: bytes) -> None:
    assert not [line for line in _sent([(name, b"x")]) if line.startswith(name)]


def test_body_has_one_framing() -> None:
    both = [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    assert [line for line in _sent(both, 3) if b"length" in line or b"chunked" in line] == [
        b"content-length: 3"
    ]
    assert [line for line in _sent(both, None) if b"length" in line or b"chunked" in line] == [
        b"transfer-encoding: chunked"
    ]


def test_answer_for_a_client_that_knows_no_chunks_ends_with_its_connection() -> None:
    head = ResponseHead(200, [(b"transfer-encoding", b"chunked"), (b"etag", b"1")], None)
    framing = framing_for(None, has_chunks=False)
    data = response_bytes(head, is_kept=False, framing=framing)
    assert data == b"HTTP/1.1 200 OK\r\netag: 1\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "path", "way"),
    [
        ("GET", "/health", Way("own", path="/health")),
        ("POST", "/execute", Way("new", path="/execute")),
        ("GET", "/sandboxes", Way("all", path="/sandboxes")),
        ("GET", "/templates", Way("data", path="/templates")),
        ("GET", "/volumes/data", Way("data", path="/volumes/data")),
        ("POST", "/volumes/data/copy", Way("data", path="/volumes/data/copy")),
        ("GET", f"/images/pulls/{ID}.{ID}", Way("data", path=f"/images/pulls/{ID}.{ID}")),
        ("GET", f"/templates/builds/{ID}/events", Way("object", NODE, "build", ID)),
        ("GET", "/volumes/../node", Way("refused")),
        ("GET", "/volumes/a/../node", Way("refused")),
        ("GET", "/volumes/a/b/c", Way("refused")),
        ("GET", "/volumesx", Way("refused")),
        ("GET", f"/sandboxes/{ID}", Way("object", NODE, "sandbox", ID)),
        ("POST", f"/sandboxes/{ID}/execute", Way("object", NODE, "sandbox", ID)),
        ("GET", f"/executions/{ID}/events", Way("object", NODE, "execution", ID)),
        ("GET", "/sandboxes/short", Way("object", "", "sandbox", "short")),
        ("GET", f"/sandboxes/{ID}/ports/80/", Way("object", NODE, "sandbox", ID, True)),
        ("GET", f"/signed/{NODE}xyz", Way("object", NODE, "token", f"{NODE}xyz", True)),
        ("GET", "/keys", Way("own", thing="key", path="/keys")),
        ("POST", "/executions/batch", Way("batch", path="/executions/batch")),
        ("GET", "/executions/batch", Way("any", path="/executions/batch")),
        ("DELETE", "/templates", Way("data", path="/templates")),
        ("POST", "/templates", Way("data", path="/templates")),
        ("GET", "/node", Way("refused")),
        ("GET", f"/node/ids/{ID}", Way("refused")),
        ("GET", "//sandboxes/x", Way("refused")),
        ("GET", "/sandboxes/../keys", Way("object", "", "sandbox", "..")),
    ],
)
def test_request_goes_where_its_path_says(method: str, path: str, way: Way) -> None:
    assert way_of(method, path) == way
