"""HTTP with a client inside: hostile bytes, slow readers, one connection for many requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import h11
import pytest

from cellwall.egress.packages.broker import Broker
from cellwall.egress.packages.serving import Served, ServingTimes, Terms, serve
from cellwall.model.packages import PackagePolicy
from kit.packages import brokers, made, registries
from kit.packages.asking import brokering
from kit.packages.brokers import ON, Serving
from kit.packages.registries import Registry, Reply

SMALL = made.wheel("small")
LARGE = made.wheel("large", padding=os.urandom(20_000_000))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registries.running() as started:
        started.add(SMALL)
        yield started


@pytest.fixture
def broker(registry: Registry, tmp_path: Path) -> Iterator[Serving]:
    with brokers.serving(tmp_path, brokers.upstreams(registry)) as started:
        yield started


def get(target: str, *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join(
        (f"{method} {target} HTTP/{version}", "Host: packages.test", *fields, "", "")
    ).encode()


def said(broker: Serving, sent: bytes, *, half_close: bool = True) -> bytes:
    """Return all that comes back until the broker closes."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as peer:
        peer.sendall(sent)
        if half_close:
            with contextlib.suppress(OSError):  # it may have refused and closed already
                peer.shutdown(socket.SHUT_WR)
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while part := peer.recv(65_536):
                parts.append(part)
        return b"".join(parts)


def answers(received: bytes) -> list[tuple[int, str, bytes]]:
    """Return status, reason and body of each answer."""
    http, found = h11.Connection(h11.CLIENT), []
    http.receive_data(received)
    http.receive_data(b"")
    while http.trailing_data[0]:
        http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        http.send(h11.EndOfMessage())
        head, body = http.next_event(), b""
        assert isinstance(head, h11.Response)
        while isinstance(event := http.next_event(), h11.Data):
            body += event.data
        assert isinstance(event, h11.EndOfMessage)
        found.append((head.status_code, head.reason.decode(), body))
        if http.their_state is not h11.DONE:
            break
        http.start_next_cycle()
    return found


def _any() -> PackagePolicy:
    return PackagePolicy.of(ON)


class Spent(Exception):
    """A meter of a test has no room left."""


def small(name: str = SMALL.file_name) -> str:
    return f"/files/pypi/{SMALL.sha256}/{name}"


def test_one_connection_carries_many_requests(broker: Serving) -> None:
    requests = get("/simple/small/") + get(small()) + get("/simple/none/") + get(small())
    got = answers(said(broker, requests))
    assert [status for status, _, _ in got] == [200, 200, 404, 200]
    assert got[1][2] == got[3][2] == SMALL.content
    assert [each.sent_bytes for each in broker.served[1::2]] == [len(SMALL.content)] * 2


def test_refusal_is_the_reason_phrase_and_is_counted(broker: Serving) -> None:
    broker.only(deny=["small"])
    (got,) = answers(said(broker, get(small())))
    assert got[:2] == (
        403,
        "small is refused: it is on the list of packages that are denied here",
    )
    assert [(each.status, each.reason) for each in broker.served] == [got[:2]]


def test_name_on_no_list_is_asked_of_no_registry(broker: Serving, registry: Registry) -> None:
    """A name is the program's text; the control is one that is on the list."""
    broker.only(allow=["small"])
    secret = "what-the-program-wants-to-say"
    for target in (f"/simple/{secret}/", f"/npm/{secret}", f"/files/pypi/x/{secret}-1.0.tar.gz"):
        (got,) = answers(said(broker, get(target)))
        assert got[0] in {403, 404, 451}
    assert answers(said(broker, get("/simple/small/")))[0][0] == 200
    asked = [each.path for each in registry.asked]
    assert any("small" in path for path in asked)
    assert not any(secret in path for path in asked)


@pytest.mark.parametrize("way", ["sent", "received"])
def test_meter_that_is_spent_ends_the_connection(
    registry: Registry, tmp_path: Path, way: str
) -> None:
    registry.add(LARGE)
    counted = 0

    async def count(size: int) -> None:
        nonlocal counted
        counted += size
        if counted > (100 if way == "sent" else 1_000_000):
            raise Spent

    async def run() -> bytes:
        terms = Terms(_any, **{f"count_{way}": count})  # type: ignore[arg-type]
        async with (
            brokering(tmp_path, brokers.upstreams(registry)) as broker,
            _listening(broker, ServingTimes(), terms) as port,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                for fields in ((), (), ("Connection: close",)):
                    writer.write(get(f"/files/pypi/{LARGE.sha256}/{LARGE.file_name}", *fields))
                while part := await reader.read(65_536):
                    received += part
            writer.transport.abort()
            return received

    received = asyncio.run(run())
    assert len(received) < 2_000_000
    assert counted > 100


def test_policy_counts_from_the_next_request_of_a_connection_on(broker: Serving) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as peer:
        peer.sendall(get(small()))
        received = peer.recv(65_536)
        while len(received) < len(SMALL.content) + 200 and b"PK\x05\x06" not in received:
            received += peer.recv(65_536)
        broker.only(deny=["small"])
        peer.sendall(get(small(), "Connection: close"))
        assert peer.makefile("rb").readline().startswith(b"HTTP/1.1 403 small is refused")


_PAGE, _PACKUMENT, _TARBALL = "/simple/small/", "/npm/left", "/npm/left/-/left-1.0.0.tgz"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("policy", "targets"),
    [
        ({"allow": ["other", "npm:small"]}, [_PAGE, small(), f"{small()}.metadata"]),
        ({"allow": ["pypi:left"]}, [_PACKUMENT, _TARBALL]),
        ({"allow": []}, [_PAGE, _PACKUMENT]),
        ({"allow": ["s*"], "within": ["t*"]}, [_PAGE, "/simple/s-what-it-knows/"]),
        ({"allow": ["t*"], "within": ["s*"]}, [_PAGE]),
        ({"deny": ["small"]}, [_PAGE, small(), f"{small()}.metadata"]),
        ({"deny": ["s*", "npm:l*"]}, ["/simple/s-what-it-knows/", _PACKUMENT, _TARBALL]),
    ],
)
def test_name_of_which_nothing_is_allowed_reaches_no_registry(
    broker: Serving, registry: Registry, policy: dict[str, object], targets: list[str], method: str
) -> None:
    """A program can write into a name what it wants to send out."""
    registry.add_npm(made.tarball("left"))
    broker.only(**policy)
    got = [said(broker, get(target, method=method)).split(b"\r\n")[0] for target in targets]
    assert all(each[9:12] in (b"403", b"451") for each in got), got
    assert all(b" is refused: it is " in each for each in got), got
    assert registry.asked == []
    broker.only()
    said(broker, get(targets[0], method=method))
    assert registry.asked, "the control"


def test_name_whose_versions_are_listed_is_asked_for(broker: Serving, registry: Registry) -> None:
    """Which versions there are is not known before."""
    broker.only(allow=["small>=2"], deny=["small<0.1"])
    (got,) = answers(said(broker, get(small())))
    assert got[:2] == (
        403,
        "small 1.0 is refused: it is not on the list of packages that are allowed here",
    )
    assert registry.count("/simple/small/") == 1


def test_head_has_the_length_and_fetches_nothing(broker: Serving, registry: Registry) -> None:
    got = said(broker, get(small(), method="HEAD"))
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(SMALL.content)}\r\n".encode() in got
    assert got.endswith(b"\r\n\r\n")
    assert [each.path for each in registry.asked] == ["/simple/small/"]
    said(broker, get(small()))
    assert said(broker, get(small(), method="HEAD")) == got, "the same from the cache"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (get("/simple/small/", version="1.0"), b"505"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET /simple/small/\r\n\r\n", b"400"),
        (b"GET /simple/small/ HTTP/1.1\r\n\r\n", b"400"),
        (get("/simple/small/", "X: " + "y" * 60_000), b"431"),
        (get("/simple/small/", "Content-Length: 1", "Content-Length: 2"), b"400"),
        (get("/simple/small/", "X: a\x00b"), b"400"),
        (b"\x16\x03\x01\x02\x00\x01", b"400"),
        (get("/simple/../../etc/passwd"), b"404"),
        (get("/simple/small/", method="CONNECT"), b"405"),
        (get("/npm/-/npm/v1/security/advisories/bulk", "Content-Length: 2", method="POST"), b"405"),
        (get("/npm/x", "Content-Length: 300000", method="PUT") + b"x" * 300_000, b"413"),
    ],
    ids=["1.0", "h2", "0.9", "no host", "long", "two lengths", "nul", "tls", "dots", "connect",
         "post", "large"],
)  # fmt: skip
def test_what_is_no_request_for_a_package_ends_in_a_status(
    broker: Serving, sent: bytes, status: bytes
) -> None:
    if b"POST" in sent:
        sent += b"{}"
    got = said(broker, sent)
    assert got[9:12] == status or (status == b"413" and not got)
    assert answers(said(broker, get("/simple/small/")))[0][0] == 200


def test_second_request_is_not_hidden_in_a_body(broker: Serving) -> None:
    inner = get(small())
    requests = get("/simple/small/", f"Content-Length: {len(inner)}", method="POST") + inner
    got = answers(said(broker, requests + get("/simple/none/")))
    assert [status for status, _, _ in got] == [405, 404]


def test_host_of_the_request_cannot_be_more_than_one(broker: Serving, registry: Registry) -> None:
    registry.add_npm(made.tarball("left"))
    for host in ("a/b", "a b", '"', "a\\b", "user@a", "a#", ""):
        sent = get("/npm/left").replace(b"packages.test", host.encode())
        assert answers(said(broker, sent))[0][0] == 400, host
    assert answers(said(broker, get("/npm/left")))[0][0] == 200


def test_file_that_does_not_come_whole_cuts_the_connection(
    broker: Serving, registry: Registry
) -> None:
    """A client that tries again soon hears why; later it is tried again."""
    wheel = made.wheel("cut", padding=os.urandom(500_000))
    path = registry.add(wheel)
    registry.replies[path] = Reply(wheel.content[:-1] + b"?")
    address = f"/files/pypi/{wheel.sha256}/{wheel.file_name}"
    received = said(broker, get(address) + get("/simple/small/"))
    with pytest.raises(h11.RemoteProtocolError, match="without sending complete message body"):
        answers(received)
    assert [(each.status, each.is_whole) for each in broker.served] == [(200, False)]
    (again,) = answers(said(broker, get(address)))
    assert again[0] == 424
    assert "its content is not what the registry's page promises" in again[1]
    assert registry.count(path) == 1
    broker.broker._downloads._failed.clear()
    registry.replies[path] = Reply(wheel.content)
    assert answers(said(broker, get(address)))[0][2] == wheel.content


def test_client_that_reads_nothing_loses_its_connection_and_holds_up_no_other(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add(LARGE)

    async def run() -> Served:
        times, cut = ServingTimes(stuck_s=0.3), asyncio.Queue[Served]()
        async with (
            brokering(tmp_path, brokers.upstreams(registry)) as broker,
            _listening(broker, times, Terms(_any, on_served=cut.put_nowait)) as port,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(get(f"/files/pypi/{LARGE.sha256}/{LARGE.file_name}"))
            assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
            other_reader, other = await asyncio.open_connection("127.0.0.1", port)
            other.write(get(small()))
            assert await other_reader.readexactly(15) == b"HTTP/1.1 200 OK"
            served = await cut.get()
            assert served.is_whole, "the other one was first"
            served = await asyncio.wait_for(cut.get(), 20)
            writer.transport.abort()
            other.transport.abort()
            return served

    stuck = asyncio.run(run())
    assert not stuck.is_whole
    assert stuck.sent_bytes < len(LARGE.content)


def test_client_that_says_nothing_or_little_is_let_go(registry: Registry, tmp_path: Path) -> None:
    async def run() -> list[float]:
        times = ServingTimes(idle_s=0.2, head_s=0.2)
        took = []
        async with (
            brokering(tmp_path, brokers.upstreams(registry)) as broker,
            _listening(broker, times, Terms(_any)) as port,
        ):
            for sent in (b"", b"GET /simple", get("/simple/small/", "Content-Length: 9")):
                begun = time.monotonic()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                with contextlib.suppress(ConnectionResetError):
                    await asyncio.wait_for(reader.read(), 20)
                took.append(time.monotonic() - begun)
                writer.transport.abort()
        return took

    assert all(0.1 < each < 10 for each in asyncio.run(run()))


@contextlib.asynccontextmanager
async def _listening(broker: Broker, times: ServingTimes, terms: Terms) -> AsyncIterator[int]:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(Spent):
            await serve(reader, writer, broker, terms, times)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
