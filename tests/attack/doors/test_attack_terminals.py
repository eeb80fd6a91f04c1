"""Q10: a terminal whose program, or whose client, will not behave. This process is the witness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cellwall import AsyncSandbox, Terminal, Verdict
from cellwall.runtimes.channel.channel import GuestChannel
from kit.arena import Arena, fresh_peak_kib, peak_kib

pytestmark = pytest.mark.attack

_HOST_MAY_GROW_KIB = 8 * 1024
_INSIDE_MAY_GROW = 8 << 20
Attack = Callable[[AsyncSandbox], Awaitable[None]]


def beside_a_neighbour(arena: Arena, attack: Attack) -> None:
    """Run `attack` in a session; what it costs the host is bounded, nothing is left behind."""

    async def both() -> None:
        async with arena.sandbox() as sandbox:
            neighbour = asyncio.ensure_future(arena.engine.run("print(1)", timeout=20))
            await attack(sandbox)
            assert (await neighbour).stdout == "1\n"
            assert (await sandbox.run("6 * 7")).text == "42"

    before = fresh_peak_kib()
    with arena.leaving_nothing():
        arena.do(both())
    assert peak_kib() - before <= _HOST_MAY_GROW_KIB


async def started(sandbox: AsyncSandbox, script: str, *, first: str = ":") -> Terminal:
    """Start `script` on a raw terminal and wait until it says that it runs, after `first`."""
    command = ["/bin/bash", "-c", f"stty raw -echo; {first}; echo go; {script}"]
    terminal = await sandbox.commands.start(command, pty=(24, 80))
    await read_until(terminal, b"go\n")
    return terminal


async def read_until(terminal: Terminal, expected: bytes) -> None:
    seen = b""
    while expected not in seen:
        piece = await asyncio.wait_for(terminal.read(), 10)
        assert piece, seen
        seen += piece


async def rest_of(terminal: Terminal) -> bytes:
    return b"".join([piece async for piece in terminal])


@pytest.mark.parametrize("case", ["Q10-resize"])
def test_storm_of_resizes_is_taken_and_the_last_one_counts(arena: Arena, case: str) -> None:
    trap = "trap 'n=$((n + 1))' WINCH"
    storm = [(1 + n % 200, 1 + n % 300) for n in range(20_000)]

    async def attack(sandbox: AsyncSandbox) -> None:
        terminal = await started(sandbox, "read -r _; echo $n; stty size", first=trap)
        for rows, columns in storm:
            await terminal.resize(rows, columns)
        await asyncio.gather(*(terminal.resize(*size) for size in storm[:500]))
        await terminal.resize(51, 67)
        await terminal.write("\n")
        count, size = (await rest_of(terminal)).split(b"\n")[:2]
        assert size == b"51 67"
        assert int(count) > 0  # the program did see them

    beside_a_neighbour(arena, attack)


@pytest.mark.parametrize("case", ["Q10-binary"])
def test_every_byte_passes_both_ways(arena: Arena, case: str) -> None:
    every = bytes(range(256)) * 64

    async def attack(sandbox: AsyncSandbox) -> None:
        terminal = await started(sandbox, f"head -c {len(every)}")
        await terminal.write(every)
        assert await rest_of(terminal) == every
        # The control: a terminal that is not raw does change them, so it is one.
        cooked = await sandbox.commands.start(["printf", "a\\n"], pty=(24, 80))
        assert await rest_of(cooked) == b"a\r\n"

    beside_a_neighbour(arena, attack)


@pytest.mark.parametrize("case", ["Q10-xoff"])
def test_stopped_terminal_stops_nobody_else(arena: Arena, case: str) -> None:
    async def attack(sandbox: AsyncSandbox) -> None:
        terminal = await started(sandbox, "read -r _; echo held; read -r _", first="stty ixon")
        await terminal.write("\x13")
        await terminal.write("\n")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(terminal.read(), 0.5)
        assert (await sandbox.commands.run(["echo", "free"])).stdout == "free\n"
        await terminal.write("\x11")  # the control: it was held back, not lost
        await read_until(terminal, b"held")
        await terminal.write("\x13")
        await terminal.close()
        assert (await terminal.wait()).outcome.verdict is Verdict.SIGNALLED

    beside_a_neighbour(arena, attack)


_PASTE = 1 << 30


@pytest.mark.parametrize("case", ["Q10-paste"])
def test_paste_that_nobody_reads_is_bounded(
    arena: Arena, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = count_input(monkeypatch)

    async def attack(sandbox: AsyncSandbox) -> None:
        terminal = await started(sandbox, "exec sleep 600")
        before = sandbox.live.readings().memory_bytes
        pasting = asyncio.ensure_future(terminal.write(bytes(_PASTE)))
        done, _ = await asyncio.wait({pasting}, timeout=1)
        assert not done
        assert 64 << 10 <= sum(sent) <= 512 << 10
        assert sandbox.live.readings().memory_bytes - before <= _INSIDE_MAY_GROW
        await terminal.close()
        await asyncio.wait_for(pasting, 10)  # who pastes learns of the end

    beside_a_neighbour(arena, attack)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(64 << 20, id="Q10-paste-read"),
        pytest.param(_PASTE, id="Q10-paste-read-all", marks=pytest.mark.slow),
    ],
)
def test_paste_that_is_read_arrives_whole(arena: Arena, size: int) -> None:
    # Written before anything is measured: pages of zeros become resident when the kernel likes.
    paste = b"x" * size

    async def attack(sandbox: AsyncSandbox) -> None:
        terminal = await started(sandbox, f"head -c {size} | wc -c")
        await terminal.write(paste)
        assert await rest_of(terminal) == b"%d\n" % size

    beside_a_neighbour(arena, attack)


def count_input(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the bytes of input that really leave for the inside."""
    sent: list[int] = []
    send = GuestChannel.send

    def counted(channel: GuestChannel, header: Any, body: bytes | memoryview = b"") -> None:
        if header["op"] == "stdin":
            sent.append(len(body))
        send(channel, header, body)

    monkeypatch.setattr(GuestChannel, "send", counted)
    return sent


@pytest.mark.parametrize("case", ["Q10-flood"])
def test_flood_is_held_back_while_nobody_reads(arena: Arena, case: str) -> None:
    async def attack(sandbox: AsyncSandbox) -> None:
        flood = await started(sandbox, "cat /dev/zero")
        taken = 0
        while taken < 64 << 20:  # the control: it flows as long as it is read
            taken += len(await flood.read())
        assert (await sandbox.run("1 + 1")).text == "2"
        assert len(flood._stream._buffer) <= 256 << 10
        await flood.close()
        assert (await flood.wait()).outcome.verdict is Verdict.SIGNALLED

    beside_a_neighbour(arena, attack)
