"""The SDK with the addresses of several gateways: which is asked, and what goes on at another.

The gateways are listeners on loopback that say which of them was asked, and can cut.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterable

import pytest

from cellwall.client.connection import retry, servers
from cellwall.client.connection.address import Address, address_of
from cellwall.client.connection.sockets import made_no_connection
from cellwall.client.connection.transport import Ask, Transport
from cellwall.model.errors import ServerUnreachable, UsageError

KEY = "k" * 32
KEYED = Ask("POST", "/execute", body={"code": "1"}, key="once", is_held=True)
UNKEYED = Ask("POST", "/files", body={})


# -- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        ["http://127.0.0.1:1/", "https://b", "unix:/run/c"],
        ("http://127.0.0.1:1", "https://b", "unix:/run/c", "http://127.0.0.1:1"),
        "http://127.0.0.1:1,https://b,unix:/run/c",
        "http://127.0.0.1:1/ , https://b/, unix:/run/c",
    ],
)
def test_several_addresses_are_a_list_or_a_text_with_commas(given: str | list[str]) -> None:
    found = address_of(given, KEY, {})
    assert found.shown == "http://127.0.0.1:1,https://b,unix:/run/c"
    assert [each.key for each in (found, *found.others)] == [KEY] * 3
    assert KEY not in repr(found)
    assert address_of(None, None, {"CELLWALL_URL": found.shown, "CELLWALL_API_KEY": KEY}) == found


def test_comma_in_the_path_of_a_unix_socket_is_no_second_address() -> None:
    found = address_of("unix:/run/a,b", KEY, {})
    assert (found.unix, found.others) == ("/run/a,b", ())


@pytest.mark.parametrize("given", ["http://a,b:80", ["http://a", "b"], ["http://a,http://b"]])
def test_second_address_that_is_none_is_refused(given: str | list[str]) -> None:
    with pytest.raises(UsageError, match="several with commas"):
        address_of(given, KEY, {})


def test_no_address_at_all_is_not_the_default() -> None:
    with pytest.raises(UsageError, match="empty"):
        address_of([], KEY, {"CELLWALL_URL": "http://a:1"})
    assert address_of(None, KEY, {"CELLWALL_URL": "http://a:1"}).url == "http://a:1"


@pytest.mark.parametrize("clear", ["http://a:1", "http://10.0.0.1", "http://localhost.a"])
def test_key_is_not_sent_in_clear_beside_addresses_with_tls(clear: str) -> None:
    with pytest.raises(UsageError, match="has no TLS"):
        address_of(["https://b", clear], KEY, {})
    assert address_of(["http://b", clear], KEY, {}).others
    for own in ("http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1", "unix:/run/c"):
        assert address_of(["https://b", own], KEY, {}).others


# -- gateways ----------------------------------------------------------------------------------


class Gate:
    """One gateway."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heads: list[str] = []
        self.cuts = 0
        """How many of the next requests are cut instead of answered."""
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listen, at the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if self.cuts:
            self.cuts -= 1
        else:
            body = json.dumps({"name": self.name}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
                % (len(body), body)
            )
        writer.close()


def on(gates: Iterable[Gate], work: Callable[[Transport], Awaitable[None]]) -> None:
    """Run `work` with a client of those gateways."""

    async def main() -> None:
        for each in gates:
            await each.open()
        transport = Transport(address_of([each.url for each in gates], KEY, {}), 5.0)
        try:
            await work(transport)
        finally:
            await transport.aclose()
            for each in gates:
                await each.close()

    asyncio.run(main())


async def asked(transport: Transport, ask: Ask = KEYED) -> str:
    return str((await transport.json(ask))["name"])


def test_first_is_asked_and_the_next_when_nothing_listens_there() -> None:
    first, second = Gate("first"), Gate("second")

    async def work(transport: Transport) -> None:
        assert await asked(transport) == "first"
        await first.close()
        for ask in (UNKEYED, KEYED, KEYED):  # certainly not begun: anything goes to the next
            assert await asked(transport, ask) == "second"
        await first.open()
        assert await asked(transport) == "second"  # for a while
        await second.close()
        assert await asked(transport) == "first"

    on([first, second], work)


def test_request_with_a_key_that_broke_is_sent_to_the_next_under_its_key() -> None:
    first, second = Gate("first"), Gate("second")
    first.cuts = 1

    async def work(transport: Transport) -> None:
        assert await asked(transport) == "second"
        assert [len(first.heads), len(second.heads)] == [1, 1]
        for head in (*first.heads, *second.heads):
            assert "idempotency-key: once\r\n" in head.lower()

    on([first, second], work)


def test_request_that_cannot_be_repeated_is_an_error_and_the_next_one_goes_on() -> None:
    first, second = Gate("first"), Gate("second")
    first.cuts = 1

    async def work(transport: Transport) -> None:
        with pytest.raises(ServerUnreachable):
            await asked(transport, UNKEYED)
        assert second.heads == []
        assert await asked(transport, UNKEYED) == "second"

    on([first, second], work)


def test_stream_that_breaks_goes_on_elsewhere() -> None:
    first, second = Gate("first"), Gate("second")

    async def work(transport: Transport) -> None:
        import httpx

        with pytest.raises(httpx.ReadError):
            async with transport.stream(Ask("GET", "/events", is_held=True)):
                raise httpx.ReadError("cut")
        assert await asked(transport) == "second"

    on([first, second], work)


def test_each_of_several_has_all_tries_before_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "DELAYS_S", (0.01, 0.01))
    first, second = Gate("first"), Gate("second")
    first.cuts = second.cuts = 99

    async def work(transport: Transport) -> None:
        with pytest.raises(ServerUnreachable, match=f"{first.url},{second.url}"):
            await asked(transport)
        assert [len(first.heads), len(second.heads)] == [3, 3]

    on([first, second], work)


# -- whose turn it is --------------------------------------------------------------------------


class Clock:
    """Time that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1.0
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self) -> float:
        return self.now_s


def test_one_request_tries_an_address_that_failed_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    made = servers.Servers(address_of("http://a,http://b", KEY, {}), None)
    first, second = made.all
    made.failed(first)
    clock.now_s += servers.AVOIDED_S - 1
    assert made.choose() is second
    clock.now_s += 2
    assert [made.choose() for _ in range(3)] == [first, second, second]
    made.answered(first)
    assert made.choose() is first


def test_of_addresses_that_all_failed_the_one_that_did_first_is_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    made = servers.Servers(address_of("http://a,http://b,http://c", KEY, {}), None)
    for each in made.all[::-1]:
        made.failed(each)
        clock.now_s += 1
    assert made.choose() is made.all[2]


def test_one_address_is_asked_whatever_failed() -> None:
    made = servers.Servers(Address("http://a"), None)
    assert made.choose() is made.choose() is made.all[0]  # and no loop is asked for the time


# -- WebSockets --------------------------------------------------------------------------------


def test_socket_is_opened_elsewhere_only_if_no_connection_was_made() -> None:
    first, second = Gate("first"), Gate("second")
    second.cuts = 99

    async def work(transport: Transport) -> None:
        await first.close()
        with pytest.raises(ServerUnreachable):  # the second was asked, and cuts
            await transport.socket("/terminal", {})
        assert len(second.heads) == 1
        first.cuts = 99
        await first.open()
        with pytest.raises(ServerUnreachable):
            await transport.socket("/terminal", {})
        assert [len(first.heads), len(second.heads)] == [1, 1]

    on([first, second], work)


@pytest.mark.parametrize(
    ("error", "is_certain"),
    [
        (ConnectionRefusedError(), True),
        (OSError("Multiple exceptions"), True),
        (socket.gaierror(), True),
        (FileNotFoundError(), True),
        (ConnectionResetError(), False),
        (BrokenPipeError(), False),
        (TimeoutError(), False),
        (EOFError(), False),
    ],
)
def test_errors_after_which_nothing_was_sent(error: Exception, is_certain: bool) -> None:
    assert made_no_connection(error) is is_certain
