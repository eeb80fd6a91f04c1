"""Parts of the egress proxy that need no sandbox: names, hellos, authorities, meters, answers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import Any

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.proxy import hello, listening
from cellwall.egress.proxy.destinations import authority
from cellwall.egress.proxy.http_relay import REQUEST_LINE
from cellwall.egress.proxy.meter import LimitReached, Meter, SandboxMeter
from cellwall.egress.proxy.naming import dns as answers
from cellwall.egress.proxy.naming import names, resolver
from cellwall.egress.proxy.sandbox_network import Destination, SandboxNetwork
from cellwall.model.network import NetworkPolicy


def test_a_made_up_address_is_of_one_name_for_ever() -> None:
    table = names.Names()
    first, second = table.address_of("a.test"), table.address_of("b.test")
    assert (first, second) == ("198.18.0.1", "198.18.0.2")
    assert table.address_of("a.test") == first
    assert table.name_of("198.18.0.2") == "b.test"
    assert table.name_of("198.18.0.3") is None
    for number in range(names.MOST_NAMES):
        table.address_of(f"n{number}.test")
    assert table.address_of("one.too.many.test") is None
    assert table.address_of("a.test") == first


def _hello_for(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("name", ["web.test", "WEB.test", None])
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_the_name_in_a_hello_in_pieces(name: str | None, step: int) -> None:
    data, reader = _hello_for(name), hello.Hello()
    whole = [reader.feed(data[at : at + step]) for at in range(0, len(data), step)]
    assert whole[-1]
    assert not any(whole[:-1])
    assert reader.name == (None if name is None else "web.test")


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_are_a_hello_or_not(data: bytes) -> None:
    reader = hello.Hello()
    try:
        is_whole = reader.feed(data)
    except hello.NotTls:
        return
    assert not is_whole  # it waits for more
    assert reader.name is None


def test_a_hello_without_an_end_is_refused() -> None:
    record, size = b"\x16\x03\x01\x40\x00", 16_384
    first = record + b"\x01\x01\xf0\x00" + bytes(size - 4)  # of a message of 124 KiB
    reader = hello.Hello()
    with pytest.raises(hello.NotTls, match="too long"):
        any(reader.feed(each) for each in (first, *(record + bytes(size) for _ in range(5))))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Web.Test:80", Destination("web.test", 80, is_name=True)),
        ("web.test.", Destination("web.test", 443, is_name=True)),
        ("192.0.2.1:8080", Destination("192.0.2.1", 8080, is_name=False)),
        ("[2001:DB8::1]:80", Destination("2001:db8::1", 80, is_name=False)),
        ("user@web.test:80", None),
        ("web.test:port", None),
        ("web.test:99999", None),
        ("web.test/x", None),
        ("127.1:80", None),
        ("0x7f000001:80", None),
        ("2130706433:80", None),
        ("0177.0.0.1:80", None),
        (":80", None),
        ("", None),
    ],
)
def test_authorities(text: str, found: Destination | None) -> None:
    assert authority(text, 443) == found


@pytest.mark.parametrize(
    ("data", "is_request"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", True),
        (b"\r\n\r\nGET / HTTP/1.0\r\n", True),
        (b"get / HTTP/1.1\n", True),
        (b"GET key\r\n", False),
        (b"*1\r\n$4\r\nPING\r\n", False),
        (b"SSH-2.0-x\r\n", False),
        (b"PRI * HTTP/2.0\r\n", False),
    ],
)
def test_what_is_a_request(data: bytes, is_request: bool) -> None:
    assert bool(REQUEST_LINE.match(data)) is is_request


def test_a_meter_counts_and_ends() -> None:
    whole = SandboxMeter(NetworkPolicy.of({"mode": "open", "transfer_mb": 1}))
    meter = Meter(whole)

    async def move() -> None:
        await meter.count_sent(1 << 19)
        await meter.count_received(1 << 19)
        with pytest.raises(LimitReached):
            await meter.count_sent(1)

    asyncio.run(move())
    assert (meter.sent, meter.received, whole.sent) == (1 << 19, 1 << 19, 1 << 19)
    whole.set(NetworkPolicy.of({"mode": "open", "transfer_mb": 2}))
    asyncio.run(meter.count_sent(1))


class _Resolver:
    def __init__(self, **known: Any) -> None:
        self.known = known
        self.asked: list[str] = []

    async def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        found = self.known.get(name.replace(".", "_"), [])
        if isinstance(found, asyncio.Event):
            await found.wait()
            return ["93.184.216.34"]
        return list(found)


def _network(policy: object, ask: _Resolver) -> SandboxNetwork:
    listed = AddressPolicy([])
    return SandboxNetwork(NetworkPolicy.of(policy), listed, ask, lambda _record: None)


def _answered(network: SandboxNetwork, name: str, kind: str = "A") -> tuple[int, list[str]]:
    async def ask() -> bytes | None:
        return await answers.answer(network, dns.message.make_query(name, kind).to_wire())

    data = asyncio.run(ask())
    assert data is not None
    reply = dns.message.from_wire(data)
    return reply.rcode(), [each.to_text() for group in reply.answer for each in group]


def test_answers_are_made_here_and_for_allowed_names_only() -> None:
    ask = _Resolver(a_test=["93.184.216.34"], b_test=["93.184.216.34"], c_test=["127.0.0.1"])
    network = _network(["a.test", "c.test", "gone.test"], ask)
    assert _answered(network, "A.Test") == (dns.rcode.NOERROR, ["198.18.0.1"])
    assert _answered(network, "a.test", "AAAA") == (dns.rcode.NOERROR, [])
    assert _answered(network, "a.test", "TXT") == (dns.rcode.NOERROR, [])
    assert _answered(network, "b.test") == (dns.rcode.NXDOMAIN, [])
    assert _answered(network, "c.test") == (dns.rcode.NXDOMAIN, [])
    assert _answered(network, "gone.test") == (dns.rcode.NXDOMAIN, [])
    assert set(ask.asked) == {"a.test", "c.test", "gone.test"}
    assert network.refused == 2


def test_an_answer_does_not_outlive_its_policy() -> None:
    network = _network(["a.test"], _Resolver(a_test=["93.184.216.34"]))
    assert _answered(network, "a.test")[0] == dns.rcode.NOERROR
    assert _answered(network, "a.test")[0] == dns.rcode.NOERROR  # kept
    network.set_policy(NetworkPolicy.of([]))
    assert _answered(network, "a.test")[0] == dns.rcode.NXDOMAIN


@pytest.mark.parametrize("data", [b"", b"x" * 11, b"\0" * 12, bytes(range(200))])
def test_what_is_no_question_has_no_answer_or_an_error(data: bytes) -> None:
    reply = asyncio.run(answers.answer(_network("open", _Resolver()), data))
    assert reply is None or dns.message.from_wire(reply).rcode() != dns.rcode.NOERROR


def test_a_sandbox_has_so_many_questions_at_one_time() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        known = {f"n{number}_test": gate for number in range(40)}
        found = resolver.Answers(_Resolver(**known))
        most = resolver._MOST_ASKED
        asked = [asyncio.ensure_future(found.addresses(f"n{n}.test")) for n in range(most)]
        await asyncio.sleep(0)
        with pytest.raises(resolver.Busy):
            await found.addresses("n16.test")
        same = asyncio.ensure_future(found.addresses("n0.test"))  # the same question: no more
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*asked, same) == [["93.184.216.34"]] * (most + 1)
        assert await found.addresses("n16.test") == ["93.184.216.34"]

    asyncio.run(scenario())


def test_a_question_that_was_given_up_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds a thread of the machine's resolver until it ends, whoever still waits."""
    monkeypatch.setattr(resolver, "RESOLVE_S", 0.01)

    async def scenario() -> None:
        gate = asyncio.Event()
        most = resolver._MOST_ASKED
        known = {f"n{number}_test": gate for number in range(most)}
        found = resolver.Answers(_Resolver(**known, last_test=["93.184.216.34"]))
        for number in range(most):
            with pytest.raises(resolver.NoSuchName, match="no answer"):
                await found.addresses(f"n{number}.test")
        with pytest.raises(resolver.Busy):
            await found.addresses("last.test")
        gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await found.addresses("last.test") == ["93.184.216.34"]

    asyncio.run(scenario())


def test_refusals_that_are_alike_are_counted_and_none_is_lost() -> None:
    records: list[dict[str, Any]] = []

    async def scenario() -> None:
        policy, listed = NetworkPolicy.of([]), AddressPolicy([])
        network = SandboxNetwork(policy, listed, _Resolver(), records.append)
        for _ in range(10):
            network.note_refusal("a.test", 80, "direct", "no rule")
        for number in range(1000):
            network.note_refusal(f"n{number}.test", 0, "dns", "no rule")
        await network.close()

    asyncio.run(scenario())
    assert sum(each["times"] for each in records) == 1010
    assert len(records) < 300
    assert [each["times"] for each in records if each["host"] == "a.test"] == [1, 9]


def test_a_sandbox_begins_so_many_connections_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_CONNECTIONS_PER_S", 20.0)

    async def accepted() -> tuple[int, float]:
        network = _network({"mode": "open", "connections": 500}, _Resolver())
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
        listeners = [socket.socket(socket.AF_INET, kind) for kind in kinds]
        for each in listeners:
            each.bind(("127.0.0.1", 0))
            each.setblocking(False)
            if each.type == socket.SOCK_STREAM:
                each.listen(256)
        clients = [socket.create_connection(listeners[0].getsockname()) for _ in range(100)]
        served, begun = listening.Listening(network, listeners), time.monotonic()
        for _ in range(50):
            await asyncio.sleep(0)
        count, took_s = len(served._tasks), time.monotonic() - begun
        await served.close()
        for client in clients:
            client.close()
        return count, took_s

    count, took_s = asyncio.run(accepted())
    assert 20 <= count <= 20 + 20 * took_s + 1 < 100
