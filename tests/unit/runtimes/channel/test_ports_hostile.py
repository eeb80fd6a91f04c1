"""Connections to ports against a guest that lies: real sockets, no guest."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.engine.parts.ports import MOST_CONNECTIONS, Connection, Ports
from cellwall.model.errors import CapacityError, PortError, SandboxBroken, UsageError
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.channel.streams import WINDOW_BYTES
from cellwall.surface.shared.tasks import Tasks
from kit.guest.channel_pair import Pair, frame, with_pair

PORT = 8000
CLOSED = {"ev": "closed", "id": 1, "reset": False}


def ports_of(pair: Pair) -> Ports:
    def check_alive() -> None:
        if pair.channel.lost is not None:
            raise pair.channel.lost

    async def enter() -> None:
        check_alive()

    live = SimpleNamespace(
        channel=pair.channel,
        touch=lambda: None,
        knock=lambda: None,
        check_alive=check_alive,
        enter=enter,
    )
    return Ports(cast("Any", live), Tasks())


async def connected(pair: Pair, ports: Ports) -> Connection:
    connecting = asyncio.ensure_future(ports.connect(PORT))
    await asyncio.sleep(0)
    pair.say(frame({"ev": "connected", "id": 1}))
    return await connecting


HOSTILE = {
    "more than granted": frame({"ev": "data", "id": 1}, bytes(WINDOW_BYTES + 1)),
    "empty data": frame({"ev": "data", "id": 1}),
    "output of a command": frame({"ev": "stdout", "id": 1}, b"x"),
    "closed without saying how": frame({"ev": "closed", "id": 1}),
    "credit in words": frame({"ev": "credit", "id": 1, "bytes": "all"}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_connection_that_breaks_the_rules_ends_the_sandbox(case: str) -> None:
    async def body(pair: Pair) -> None:
        connection = await connected(pair, ports_of(pair))
        pair.guest.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(pair.guest, HOSTILE[case])
        with pytest.raises(ChannelLost):
            await asyncio.wait_for(connection.read(), 5)
        assert len(pair.violations) == 1

    with_pair(body)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"ev": "fail", "code": "refused", "message": "x" * 60_000}, PortError),
        ({"ev": "fail", "code": "busy", "message": ""}, CapacityError),
        ({"ev": "fail", "code": "\x1b[2J", "message": ""}, SandboxBroken),
        ({"ev": "closed", "reset": True}, PortError),
        ({"ev": "closed", "reset": False}, PortError),
    ],
)
def test_connection_that_is_not_made_says_why(
    answer: dict[str, Any], error: type[Exception]
) -> None:
    async def body(pair: Pair) -> None:
        ports = ports_of(pair)
        connecting = asyncio.ensure_future(ports.connect(PORT))
        await asyncio.sleep(0)
        pair.say(frame({**answer, "id": 1}))
        with pytest.raises(error):
            await asyncio.wait_for(connecting, 5)
        assert not ports._connections

    with_pair(body)


def test_guest_that_never_lets_go_cannot_make_the_host_forget_to_count() -> None:
    async def body(pair: Pair) -> None:
        ports = ports_of(pair)
        for _ in range(MOST_CONNECTIONS):
            with pytest.raises(PortError):
                await ports.connect(PORT, timeout=0)
        with pytest.raises(CapacityError):
            await ports.connect(PORT)
        pair.say(frame(CLOSED))
        pair.channel.poll()
        with pytest.raises(PortError):
            await ports.connect(PORT, timeout=0)

    with_pair(body)


def test_connection_that_is_refused_after_it_was_made_is_reset() -> None:
    async def body(pair: Pair) -> None:
        connection = await connected(pair, ports_of(pair))
        pair.say(frame({"ev": "fail", "id": 1, "code": "refused", "message": ""}))
        with pytest.raises(PortError) as caught:
            await asyncio.wait_for(connection.read(), 5)
        assert caught.value.reason == "reset"

    with_pair(body)


def test_data_after_our_close_is_dropped_and_no_violation() -> None:
    async def body(pair: Pair) -> None:
        ports = ports_of(pair)
        connection = await connected(pair, ports)
        await connection.aclose()
        pair.say(frame({"ev": "data", "id": 1}, bytes(1000)), frame(CLOSED))
        pair.channel.poll()
        assert not ports._connections
        assert not connection._stream._buffer
        assert pair.violations == []
        with pytest.raises(PortError, match="closed"):
            await connection.read()

    with_pair(body)


@pytest.mark.parametrize(
    "entries",
    [b"{}", b"[1]", b'[{"port": "80"}]', b'[{"port": 0, "address": "x"}]', b"[", b'[{"port":80}]'],
)
def test_listing_that_is_none_is_our_fault_and_said(entries: bytes) -> None:
    async def body(pair: Pair) -> None:
        listing = asyncio.ensure_future(ports_of(pair).list())
        await asyncio.sleep(0)
        pair.say(frame({"ev": "reply", "id": 1}, entries))
        with pytest.raises(SandboxBroken):
            await asyncio.wait_for(listing, 5)

    with_pair(body)


@pytest.mark.parametrize("port", [0, -1, 65_536, True, "80", 80.0])
def test_number_that_is_no_port_is_refused_before_anything_is_sent(port: Any) -> None:
    async def body(pair: Pair) -> None:
        ports = ports_of(pair)
        with pytest.raises(UsageError):
            await ports.connect(port)
        with pytest.raises(UsageError):
            ports.forward(port)

    with_pair(body)
