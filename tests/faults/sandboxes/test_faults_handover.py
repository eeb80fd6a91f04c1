"""FI-06: a sandbox that dies between its claim and the program. Another one runs it, once.

Its first process or its context is killed from outside at the last moment before code is handed
over, where a server waits for the disk. What dies later is an outcome; see `test_faults_inside`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.attempts.attempt import Attempt, BeforeCode, OnEvent, Work
from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.engine.programs import oneshot, programs
from cellwall.engine.programs.requests import Request
from cellwall.jail.inspect import posture
from cellwall.model.errors import CapacityError, FileError, SandboxBroken
from cellwall.model.outcome import Verdict
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.jail.sandbox import JailSandbox
from cellwall.runtimes.jail.single_program.channel import AloneChannel
from kit.arena import Arena

pytestmark = pytest.mark.attack

_HELD_S = 0.5
_TIMES = 2
_MOST_RUNS = 50
"""As long as a sandbox is ready sooner than we look at it."""
_PROGRAMS = {
    "init": ("print('ran')", {}),
    "context": ("print('ran')", {}),
    "init, small file": ("print(open('a').read())", {"a": b"ran"}),
    "init, large file first": ("print(open('a').read(3))", {"a": b"ran".ljust(2 << 20)}),
}


@pytest.fixture(autouse=True)
def _settled(arena: Arena) -> None:
    arena.settle()


def _wait_stopped(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


async def _kill(pid: int) -> None:
    gone = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(select.select, [gone], [], [], 10)
    os.close(gone)


async def _heard(channel: GuestChannel) -> None:
    """Wait until we were told: until then a program counts as begun, and is not run again."""
    async with asyncio.timeout(10):
        while channel._lost is None:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0.001)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _killer(arena: Arena, who: str, times: int, killed: list[int]) -> Callable[[], Awaitable[None]]:
    """Return a `before_code` that kills the first sandboxes that are claimed."""

    async def kill() -> None:
        if len(killed) >= times:
            return
        (live,) = arena.engine._programs.under_way
        sandbox = live.runtime_sandbox
        assert isinstance(sandbox, JailSandbox)
        pid = sandbox.pid if who.startswith("init") else posture.children(sandbox.pid)[0]
        await _kill(pid)
        if isinstance(live.channel, AloneChannel):
            await _heard(live.channel)  # init has to be given a CPU to say it
        killed.append(pid)

    return kill


@pytest.mark.parametrize("who", _PROGRAMS)
def test_program_whose_sandbox_died_before_it_runs_once_in_another(arena: Arena, who: str) -> None:
    """The garbage collector closes nothing meanwhile: what a program had is closed with it."""
    killed: list[int] = []
    code, files = _PROGRAMS[who]

    async def attack() -> None:
        kill = _killer(arena, who, 2, killed)
        ran = await arena.engine.execute(Request(code, files=files), before_code=kill)
        assert ran.stdout.strip() == "ran"
        assert len(set(killed)) == 2

    with _uncollected(), arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("which", [0, 1])
def test_program_in_a_sandbox_that_dies_before_it_is_ready_runs_once_in_another(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, whole_init: None, which: int
) -> None:
    """It has been given the program by then. Both are stopped first: it cannot become ready."""
    killed: list[int] = []
    expect = GuestChannel.expect_ready

    def expect_stopped(self: GuestChannel, timeout_s: float) -> None:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
            _wait_stopped(pid)
        self.poll()
        expect(self, timeout_s)

    async def begin_and_kill(live: ClaimedSandbox, *others: Any) -> Attempt:
        attempt = await oneshot.begin(live, *others)
        if live.channel.is_unready and len(killed) < _TIMES:
            killed.append(stopped[which])
            await _kill(stopped[which])
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return attempt

    def descendants(pid: int) -> list[int]:
        found = real_descendants(pid)
        stopped[:] = [pid, *found]
        return found

    stopped: list[int] = []
    real_descendants = posture.descendants
    monkeypatch.setattr(posture, "descendants", descendants)
    monkeypatch.setattr(GuestChannel, "expect_ready", expect_stopped)
    monkeypatch.setattr(programs, "begin", begin_and_kill)
    with arena.leaving_nothing():
        for _ in range(_MOST_RUNS):
            ran = arena.do(arena.engine.execute(Request("print('ran')")))
            assert (ran.stdout, ran.verdict) == ("ran\n", Verdict.OK)
            if len(killed) == _TIMES:
                break
    assert len(set(killed)) == _TIMES


@pytest.mark.parametrize("who", ["init", "context"])
def test_program_whose_sandboxes_always_die_is_given_up_by_name(arena: Arena, who: str) -> None:
    """The control: three are tried, and it is our failure, not the caller's sandbox gone (410)."""
    killed: list[int] = []

    async def attack() -> None:
        kill = _killer(arena, who, 100, killed)
        with pytest.raises(SandboxBroken, match="before the program began"):
            await arena.engine.execute(Request("print('ran')"), before_code=kill)
        assert len(killed) == 3

    with arena.leaving_nothing():
        arena.do(attack())


async def _begin_at_once(
    live: ClaimedSandbox, work: Work, on_event: OnEvent | None, before_code: BeforeCode
) -> Attempt:
    """As the engine begins what is held, with the guard off."""
    attempt = Attempt(live, work, on_event, is_held=True)
    attempt.go()
    await before_code()
    return attempt


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "print('ran')"),
        pytest.param("javascript", "console.log('ran')", marks=pytest.mark.needs("node")),
    ],
)
def test_nothing_of_a_program_runs_before_it_may(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, language: str, code: str, is_guarded: bool
) -> None:
    """The guest has it and has got everything ready. The control: with the guard off it runs."""
    if not is_guarded:
        monkeypatch.setattr(oneshot, "_begin_held", _begin_at_once)

    async def attack() -> None:
        said = asyncio.Event()
        has_run: list[bool] = []

        async def wait() -> None:
            (live,) = arena.engine._programs.under_way
            assert live.running  # it has been handed over
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(said.wait(), _HELD_S if is_guarded else 20)
            has_run.append(said.is_set())

        begun = time.perf_counter()
        ran = await arena.engine.execute(
            Request(code, language), on_event=lambda _: said.set(), before_code=wait
        )
        whole_s = time.perf_counter() - begun
        assert has_run == [not is_guarded]
        assert (ran.stdout, ran.verdict) == ("ran\n", Verdict.OK)
        # Its clock began when it did.
        assert not is_guarded or ran.outcome.usage.wall_s <= whole_s - _HELD_S

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("is_late", [True, False])
def test_held_program_whose_file_cannot_be_written_is_refused(arena: Arena, is_late: bool) -> None:
    """Its context refuses while the program is held, or once it has been let go."""
    files = {"a": b"", "a/b": b""}

    async def attack() -> None:
        async def wait() -> None:
            (live,) = arena.engine._programs.under_way
            async with asyncio.timeout(10):
                while is_late and live.channel.listening:  # noqa: ASYNC110 - nothing to wait for
                    await asyncio.sleep(0.001)

        with pytest.raises(FileError, match="'a/b'") as raised:
            await arena.engine.execute(Request("print('ran')", files=files), before_code=wait)
        assert raised.value.reason == "not_directory"

    with arena.leaving_nothing():
        arena.do(attack())


def test_program_that_may_not_run_never_does(arena: Arena) -> None:
    said: list[object] = []

    async def attack() -> None:
        async def refuse() -> None:
            raise CapacityError("no place on the disk", retry_after_s=1, remedy="wait")

        with pytest.raises(CapacityError):
            await arena.engine.execute(
                Request("print('ran')"), on_event=said.append, before_code=refuse
            )
        assert not said

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("is_init_late", [False, True])
def test_cell_whose_context_died_unnoticed_runs_once_in_a_new_one(
    arena: Arena, is_init_late: bool
) -> None:
    """As in a parked sandbox: the guest refuses, so nothing has run; the note says so.

    `is_init_late`: init hears of the cell when it knows of the closed line and not of the end.
    """

    async def attack() -> None:
        async with await arena.engine.create_sandbox() as sandbox:
            made = sandbox.live.runtime_sandbox
            assert isinstance(made, JailSandbox)
            (pid,) = posture.children(made.pid)
            if is_init_late:
                os.kill(made.pid, signal.SIGSTOP)
                await asyncio.to_thread(_wait_stopped, made.pid)
            await _kill(pid)
            # It goes on when the cell is in its socket.
            ran = await sandbox.run(
                "print('ran')", on_start=lambda _: os.kill(made.pid, signal.SIGCONT)
            )
            assert ran.stdout == "ran\n"
            assert "this ran in a new one" in ran.outcome.notes[-1]

    with arena.leaving_nothing():
        arena.do(attack())
