"""Network namespaces that several sandboxes have, one after the other (`jail.fast.netns_reuse`).

The witnesses are later sandboxes of the same workers, more than there are workers; in the controls
a mutated worker lends without looking. Traces of every kind, one by one: `test_jail_networks`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Execution
from cellwall.model.errors import HostUnsupported
from kit.arena import Arena
from kit.attack.mutations import Drop, dropping

pytestmark = pytest.mark.attack

_LATER = 12
_LOOK_AND_LEAVE = """
import socket
names, numbers = [line.split() for line in open("/proc/net/snmp") if line.startswith("Ip:")]
seen = dict(zip(names, numbers))
print(seen["OutRequests"], seen["OutNoRoutes"])
with socket.socket(type=socket.SOCK_DGRAM) as sender:
    sender.sendto(b"a word", ("127.0.0.1", 9))
    try: sender.sendto(b"a word", ("192.0.2.1", 9))
    except OSError as error: print(error.errno)
"""
_LISTEN = """
import socket, time
server = socket.create_server(("127.0.0.1", 5555))
print("up", flush=True)
time.sleep(60)
"""
_CALL = """
import socket
try: socket.create_connection(("127.0.0.1", 5555), 2); print("through")
except ConnectionRefusedError: print("refused")
"""
BLIND = "Network.is_as_new = lambda self: True"
SHARED = """
def _any(self):
    for pidfd in list(self._lent):
        network = self._taken_back(pidfd)
        do_all(network.enter)
        return network
Networks._unused = _any
"""


@pytest.fixture
def drop(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """`drop(module=code, …)`: from now on fork-servers start from the mutated bundle."""
    arena.settle()
    return dropping(tmp_path, monkeypatch)


def _with_engine(work: Any) -> Any:
    async def once() -> Any:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            return await work(engine)
        finally:
            await engine.aclose()

    return asyncio.run(once())


async def _said(engine: Engine, code: str, **options: Any) -> str:
    execution: Execution = await engine.run(code, **options)
    assert execution.exit_code == 0, execution
    return execution.stdout


async def _traces(engine: Engine, *, is_blind: bool) -> set[str]:
    """What sandboxes see of those before: packets sent, packets that had no way.

    A worker that lends without looking may lend what the one before has not left yet: that sandbox
    cannot listen, and does not start.
    """
    words = []
    for _ in range(_LATER):
        try:
            words.append((await _said(engine, _LOOK_AND_LEAVE)).splitlines())
        except HostUnsupported as error:
            if not is_blind or "Address already in use" not in str(error):
                raise
    assert {left for _, left in words} == {"101"}
    return {seen for seen, _ in words}


async def _calls(engine: Engine) -> set[str]:
    """What becomes of calls to a port on which a living neighbour listens.

    With artifacts, so that each has a whole init: that of a program alone could not even listen.
    """
    up = asyncio.Event()
    listens = asyncio.ensure_future(
        engine.run(_LISTEN, artifacts="none", on_event=lambda _: up.set(), timeout=60)
    )
    try:
        async with asyncio.timeout(20):
            await up.wait()
        return {await _said(engine, _CALL, artifacts="none") for _ in range(_LATER)}
    finally:
        listens.cancel()
        await asyncio.wait([listens])


@pytest.mark.parametrize("is_blind", [False, True])
def test_later_sandbox_sees_no_packet_of_one_before(drop: Drop, is_blind: bool) -> None:
    if is_blind:
        drop(netns_reuse=BLIND)
    seen = _with_engine(partial(_traces, is_blind=is_blind))
    assert ("2 1" in seen) is is_blind
    assert "0 0" in seen
    assert is_blind or len(seen) == 1


@pytest.mark.parametrize("is_shared", [False, True])
def test_living_neighbour_is_not_on_the_same_loopback(drop: Drop, is_shared: bool) -> None:
    if is_shared:
        drop(netns_reuse=SHARED)
    seen = _with_engine(_calls)
    assert ("through\n" in seen) is is_shared


@pytest.mark.cgroups
def test_program_alone_does_not_start_beside_another(drop: Drop) -> None:
    """A second lock: its listener has the same name in each network namespace."""
    drop(netns_reuse=SHARED)

    async def beside(engine: Engine) -> str:
        up = asyncio.Event()
        waits = asyncio.ensure_future(engine.run(_LISTEN, on_event=lambda _: up.set(), timeout=60))
        try:
            async with asyncio.timeout(20):
                await up.wait()
            for _ in range(_LATER):
                await engine.run("print(1)")
        except Exception as error:  # noqa: BLE001 - its words are looked at
            return str(error)
        finally:
            waits.cancel()
            await asyncio.wait([waits])
        return ""

    assert "listener: bind" in _with_engine(beside)
