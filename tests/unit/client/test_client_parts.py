"""The SDK's parts that need no server: addresses, retries, frames, tables of ports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cellwall.client import relay
from cellwall.client.asynchronous import AsyncClient
from cellwall.client.connection import retry
from cellwall.client.connection.address import DEFAULT_URL, address_of
from cellwall.client.connection.streaming import objects
from cellwall.client.connection.transport import Ask, Transport
from cellwall.client.ports import listening
from cellwall.client.terminals import shell_line
from cellwall.model.errors import SandboxBroken, ServerUnreachable, UsageError
from cellwall.model.files import ListeningPort

KEY = "k" * 32


# -- what does not travel -----------------------------------------------------------------------


def test_functions_without_a_schema_are_refused_before_anybody_is_asked() -> None:
    async def work() -> None:
        client = AsyncClient(address_of("http://127.0.0.1:9", KEY, {}), 5)
        for call in (client.arun("1", tools=[print]), client.create_sandbox(tools=[print])):
            with pytest.raises(UsageError, match="no schema"):
                await call
        await client.aclose()

    asyncio.run(work())


# -- addresses ---------------------------------------------------------------------------------


def test_address_comes_from_arguments_then_the_environment() -> None:
    environ = {"CELLWALL_URL": "https://one.example/", "CELLWALL_API_KEY": KEY}
    assert address_of(None, None, environ).url == "https://one.example"
    assert address_of("http://two.example:1", "other", environ).url == "http://two.example:1"
    assert address_of("http://two.example:1", "other", environ).key == "other"
    assert address_of(None, KEY, {}).url == DEFAULT_URL


def test_address_of_a_unix_socket() -> None:
    address = address_of("unix:/run/c.sock", KEY, {})
    assert (address.unix, address.shown) == ("/run/c.sock", "unix:/run/c.sock")


def test_websockets_follow_the_scheme() -> None:
    assert address_of("https://a.example/x", KEY, {}).socket_url == "wss://a.example/x"
    assert address_of("http://a.example", KEY, {}).socket_url == "ws://a.example"


def test_key_is_in_no_repr() -> None:
    assert KEY not in repr(address_of(None, KEY, {}))


@pytest.mark.parametrize(
    "url",
    ["ftp://a", "a.example", "http://", "http://u:secret@a", "http://a?x=1", "http://a:port"],
)
def test_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        address_of(url, KEY, {})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["", "with space", "line\nbreak", "é" * 20])
def test_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="key") as refused:
        address_of(None, key, {})
    assert not key or key not in str(refused.value)


# -- retries -----------------------------------------------------------------------------------


class Clock:
    """The time of a loop whose sleeps take none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def tried(
    budget: retry.Budget, clock: Clock, lasting_s: float = 0.0, *, was_held: bool = True
) -> int:
    """Return how often a connection that lasts so long may be made again, up to 50."""

    async def main() -> int:
        for count in range(50):
            clock.now_s += lasting_s
            try:
                await budget.wait(OSError("gone"), was_held=was_held)
            except ServerUnreachable:
                return count
        return 50

    coroutine = main()
    try:
        coroutine.send(None)
    except StopIteration as end:
        return int(end.value)
    raise AssertionError("it waited for something")


def test_tries_without_progress_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert tried(retry.Budget("there"), clock) == len(retry.DELAYS_S)
    for slept, longest in zip(clock.slept, retry.DELAYS_S, strict=True):
        assert longest / 2 <= slept <= longest


def test_connection_that_lasted_counts_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert tried(retry.Budget("there"), clock, lasting_s=60.0) == 50


@pytest.mark.parametrize("lasting_s", [6.0, 10.0, 60.0])
def test_tries_that_time_out_are_few(monkeypatch: pytest.MonkeyPatch, lasting_s: float) -> None:
    clock = Clock(monkeypatch)
    count = tried(retry.Budget("there"), clock, lasting_s, was_held=False)
    assert 1 <= count < len(retry.DELAYS_S)
    assert clock.now_s <= lasting_s + retry._WITHIN_S + lasting_s


@pytest.mark.parametrize(
    ("ask", "says_nothing", "is_bounded"),
    [
        (Ask("GET", "/stats"), True, True),
        (Ask("GET", "/stats"), False, True),
        (Ask("PUT", "/files", content=b"x", is_held=True), False, True),
        (Ask("GET", "/events", is_held=True), False, False),  # control: a program may run
    ],
)
def test_server_that_answers_nothing_is_an_error_soon(
    monkeypatch: pytest.MonkeyPatch, ask: Ask, says_nothing: bool, is_bounded: bool
) -> None:
    """With all times made short; it holds each connection longer than what counts as lasting."""
    monkeypatch.setattr(retry, "DELAYS_S", (0.01,) * 4)
    monkeypatch.setattr(retry, "_LASTING_S", 0.1)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(None if says_nothing else 0.15):
                await reader.read()  # until we leave
        except TimeoutError:
            if connections > 8:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport = Transport(address_of(f"http://127.0.0.1:{port}", KEY, {}), 0.3)
        try:
            if is_bounded:
                with pytest.raises(ServerUnreachable):
                    await transport.json(ask)
            else:
                assert await transport.json(ask) == {}
        finally:
            await transport.aclose()
            server.close()

    asyncio.run(main())
    assert connections == (5 if is_bounded else 9)


def test_progress_gives_all_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    budget = retry.Budget("there")
    assert tried(budget, clock) == len(retry.DELAYS_S)
    budget.progress()
    assert tried(budget, clock) == len(retry.DELAYS_S)


@pytest.mark.parametrize(
    ("ask", "may"),
    [
        (Ask("GET", "/x"), True),
        (Ask("PUT", "/x"), True),
        (Ask("POST", "/x"), False),
        (Ask("POST", "/x", key="k"), True),
        (Ask("PUT", "/x", is_repeatable=False), False),
        (Ask("PATCH", "/x", is_repeatable=True), True),
    ],
)
def test_only_what_does_nothing_twice_is_repeated(ask: Ask, may: bool) -> None:
    assert ask.may_repeat is may


# -- lines and frames --------------------------------------------------------------------------


class Pieces:
    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step = data, step

    async def aiter_raw(self) -> Any:
        for start in range(0, len(self._data), self._step):
            yield self._data[start : start + self._step]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_lines_are_whole_however_they_come(step: int) -> None:
    async def main() -> list[Any]:
        return [each async for each in objects(Pieces(b'{"a":1}\n{"b":"x y"}\n{}\n', step))]  # type: ignore[arg-type]

    assert asyncio.run(main()) == [{"a": 1}, {"b": "x y"}, {}]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_are_whole_however_they_come(step: int) -> None:
    frames, found = relay.Frames(), []
    data = relay.frame(b"C") + relay.frame(b"D", b"\x00\r\n") + relay.frame(b"E")
    for start in range(0, len(data), step):
        found += frames.feed(data[start : start + step])
    assert found == [(b"C", b""), (b"D", b"\x00\r\n"), (b"E", b"")]


@pytest.mark.parametrize(
    "data", [b"bash: python3: not found\r\n", b"D\xff\xff\xff\xff", b"C\0\1\0\1"]
)
def test_frame_of_the_inside_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(SandboxBroken):
        relay.Frames().feed(data)


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000
   1: 00000000:0050 00000000:0000 0A 00000000:00000000
   2: 0100007F:1F40 0100007F:AAAA 01 00000000:00000000
   3: nonsense 0A 0A 0A
   4: 0100007F:0000 00000000:0000 0A 00000000:00000000
   5: 01007F:1F40 00000000:0000 0A 00000000:00000000
"""
TABLE_6 = "head\n 0: 00000000000000000000000001000000:1F90 0:0 0A 0\n"


def test_listeners_are_read_and_nonsense_is_left_out() -> None:
    assert listening(TABLE) == [ListeningPort(8000, "127.0.0.1"), ListeningPort(80, "0.0.0.0")]
    assert listening(TABLE_6) == [ListeningPort(8080, "::1")]
    assert listening("") == []


def test_words_of_a_command_stay_what_they_are() -> None:
    assert shell_line(["echo", "$HOME; x", "a b"], {}) == "exec echo '$HOME; x' 'a b'"
    assert shell_line("echo $A", {"A": "b c"}) == "export 'A=b c'; echo $A"
