"""A sandbox of one program has an init of forty instructions; its other half is on the host.

What other sandboxes are attacked with reaches these as well: every program without input, files or
tools runs in one (`jail.fast.single_program`). Here is what only they have: a list of calls that a
child makes in the worker's memory, a listener in the host's hands, init's words, and announcements
that the host looks into. The controls: programs that do the same things honestly, and a whole init.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Execution, HostUnsupported, SandboxBroken, Verdict
from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.jail.inspect import posture
from cellwall.jail.plan import plan
from cellwall.jail.processes import clone_request
from cellwall.runtimes.jail.runtime import JailRuntime
from cellwall.runtimes.jail.sandbox import JailSandbox
from cellwall.runtimes.jail.single_program.channel import AloneChannel
from kit.arena import LIMITS, Arena, Traces, fresh_peak_kib, peak_kib
from kit.attack.mutations import Drop, dropping

pytestmark = [pytest.mark.attack, pytest.mark.root]


@pytest.fixture(autouse=True)
def _settled(arena: Arena) -> None:
    arena.settle()


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """`drop(module=code, …)`: from now on fork-servers start from the mutated bundle."""
    return dropping(tmp_path, monkeypatch)


def _claimed(engine: Engine) -> tuple[ClaimedSandbox, JailSandbox]:
    (live,) = engine._programs.under_way
    assert isinstance(live.runtime_sandbox, JailSandbox)
    return live, live.runtime_sandbox


async def _until_up(engine: Engine, code: str, **options: Any) -> asyncio.Task[Execution]:
    """Start a program that says so when it is as far as that."""
    up = asyncio.Event()
    work = engine.run(code, on_event=lambda _: up.set(), **options)
    task: asyncio.Task[Execution] = asyncio.ensure_future(work)
    async with asyncio.timeout(10):
        await up.wait()
    return task


_WAITS = "import time\nprint('up', flush=True)\ntime.sleep(60)"


@pytest.mark.parametrize("given", [{}, {"stdin": "word", "files": {"in/file": "word"}}])
@pytest.mark.parametrize("is_alone", [True, False])
def test_program_alone_has_a_small_init(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, is_alone: bool, given: dict[str, Any]
) -> None:
    """That this file is about what it says. The control: a whole init is an interpreter."""
    if not is_alone:
        monkeypatch.setattr(JailRuntime, "has_single_programs", False)

    async def look() -> tuple[bool, int, int]:
        task = await _until_up(arena.engine, _WAITS, **given)
        live, jail = _claimed(arena.engine)
        status = posture.read_status(posture.read_text(f"/proc/{jail.pid}/status"))
        found = len(posture.descendants(jail.pid))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return isinstance(live.channel, AloneChannel), int(status["VmSize"].split()[0]), found

    with arena.leaving_nothing():
        is_there, size_kib, children = arena.do(look())
    assert (is_there, children) == (is_alone, 1)
    assert size_kib < 1024 if is_alone else size_kib > 10_000


_FAILING_LISTS = {
    "clone_request": """
from cellwall.jail.fast import syscall_script as _script
_decode = CloneRequests._decode
def _counted(self, said):
    _script.FAIL_AT = said["guest"].get("fail_at", -1)
    self._alone.clear()
    return _decode(self, said)
CloneRequests._decode = _counted
""",
    "syscall_script": """
FAIL_AT = -1
_init = Script.__init__
def _failing(self, calls):
    calls = list(calls)
    if len(calls) > 60 and 0 <= FAIL_AT < len(calls):
        step = calls[FAIL_AT].step
        calls[FAIL_AT] = Call("close", (10**6,), f"call {FAIL_AT}: {step}")
    _init(self, calls)
Script.__init__ = _failing
""",
}


async def _refusal(engine: Engine, number: int) -> str:
    """The words of the refusal when call `number` fails; "" if there is no such call."""
    real = clone_request.encoded

    def encoded(shape: plan.Shape, uid: int, guest: Any, start: str, **more: Any) -> bytes:
        assert start == clone_request.ALONE
        return real(shape, uid, {**guest, "fail_at": number}, start, **more)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clone_request, "encoded", encoded)
            done = await engine.run("print('seen', flush=True)", env={"OWN": "environment"})
    except HostUnsupported as error:
        return f"{error.errno} {error}" if error.remedy else "no remedy"
    assert done.stdout == "seen\n"
    return ""


def test_every_call_of_the_list_that_fails_is_named_and_leaves_nothing(drop: Drop) -> None:
    """FI-26, FI-40: they are counted, not listed. The control: behind the last nothing fails."""
    drop(**_FAILING_LISTS)

    async def scenario() -> list[str]:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            assert (await engine.run("print(1)")).ok
            await engine.wait_settled()
            before, found = Traces.now(), list[str]()
            while said := await _refusal(engine, len(found)):
                found.append(said)
            await engine.wait_settled()
            assert Traces.now() == before
            assert (await engine.runtime()).statistics().detail["starts_retried"] == 0
            return found
        finally:
            await engine.aclose()

    found = asyncio.run(scenario())
    assert len(found) > 150
    for number, said in enumerate(found):
        assert said.startswith(f"{errno.EBADF} sandbox set-up, call {number}: "), said
    text = "\n".join(found)
    for step in (
        *("setresuid 1000", "mount", "unshare", "setrlimit", "PR_CAPBSET_DROP 0", "capset"),
        *("PR_SET_NO_NEW_PRIVS", "andlock", "seccomp", "fork the context", "execute init"),
    ):
        assert step in text, step


_GARBAGE = {
    "no idle": "b'\\0\\0\\0\\x0dhello, this is no frame'",
    "noise": "os.urandom(1000)",
    "the host's word": "b'L'",
    "an end of its own": "b'D' + bytes(55)",
    "an end that is none": "b'D' + b'x' * 200",
}
_SPEAKS = """
_become = _become_context
def _become_context(context, guest, is_told):
    os.write(CHANNEL_FD, {})
    _become(context, guest, is_told)
"""


async def _verdict() -> Verdict:
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        return (await engine.run("import time; time.sleep(0.5)", timeout=5)).verdict
    except SandboxBroken:
        return Verdict.SANDBOX_ERROR
    finally:
        await engine.aclose()


@pytest.mark.parametrize("what", _GARBAGE)
def test_garbage_in_the_place_of_words_is_a_sandbox_less(drop: Drop, what: str) -> None:
    """A worker imported packages that nobody reviewed, and a context is a copy of it."""
    drop(single_program=_SPEAKS.format(_GARBAGE[what]))
    before, began = Traces.now(), time.monotonic()
    assert asyncio.run(_verdict()) is Verdict.SANDBOX_ERROR
    assert time.monotonic() - began < 10
    assert Traces.now() == before


def test_worker_that_says_nothing_of_its_own_is_none_less(drop: Drop) -> None:
    """The control: that the bundle is a mutated copy is not what the refusals are about."""
    drop(single_program=_SPEAKS.format("b''"))
    assert asyncio.run(_verdict()) is Verdict.OK


_ANNOUNCES = """
import os, signal, sys, time
print("up", flush=True)
end, sent = time.monotonic() + 2, 0
while time.monotonic() < end:
    for _ in range(100): os.kill(1, signal.SIGCHLD)
    sent += 100
print(sent, flush=True)
sys.exit({})
"""


@pytest.mark.alone
def test_flood_of_announcements_is_no_end_and_costs_us_little(arena: Arena) -> None:
    """Each is a byte to us and a look of ours into /proc. The proof: how many it says it sent."""
    with arena.leaving_nothing():
        began = time.process_time()
        ended = arena.run(_ANNOUNCES.format(7), timeout=10)
        took_s = time.process_time() - began
    assert (ended.verdict, ended.outcome.exit_code) == (Verdict.NONZERO_EXIT, 7), ended.outcome
    assert int(ended.stdout.split()[-1]) > 10_000
    assert ended.outcome.usage.wall_s >= 2
    assert took_s < 0.7


_HOARDS = """
import socket, struct
lines = []
for _ in range(60):
    line = socket.socket(socket.AF_UNIX)
    line.connect("\\0cellwall")
    line.settimeout(2)
    try: line.sendall(struct.pack(">II", 13, 1 << 20) + b'{"ev":"value"' + bytes(900_000))
    except OSError: pass  # it was hung up: the oldest gives way
    lines.append(line)
print(len(lines), flush=True)
"""


def test_hoarded_half_frames_cost_us_two_of_them(arena: Arena) -> None:
    arena.run("print(1)")
    with arena.leaving_nothing():
        before_kib = fresh_peak_kib()
        ended = arena.run(_HOARDS, timeout=20)
        growth_kib = peak_kib() - before_kib
    assert ended.stdout.split()[-1] == "60"
    assert growth_kib < 8 * 1024


@pytest.mark.parametrize(
    ("how", "verdict"), [("SIGKILL", Verdict.SANDBOX_ERROR), ("SIGSTOP", Verdict.WALL_TIME)]
)
def test_init_that_is_killed_or_stopped_is_an_end_with_a_name(
    arena: Arena, how: str, verdict: Verdict
) -> None:
    """FI-07. The kernel ends the program with init; a stopped one is no obstacle to a limit."""

    async def attack() -> Execution:
        task = await _until_up(arena.engine, _WAITS, timeout=2)
        os.kill(_claimed(arena.engine)[1].pid, getattr(signal, how))
        return await task

    with arena.leaving_nothing():
        ended = arena.do(attack())
    assert (ended.verdict, ended.stdout) == (verdict, "up\n")


_ORPHANS = """
import os, time
def zombies(parent=None):
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try: fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            except OSError: continue
            found += fields[0] == "Z" and parent in (None, int(fields[1]))
    return found
for _ in range(50):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
mine = 0
while mine < 50:
    time.sleep(0.01)
    mine = zombies(os.getpid())  # an orphan that init has not reaped yet is not one of them
print(mine)  # the control: these are this program's own, and nobody waits for them
for _ in range(50): os.wait()
end = time.monotonic() + 5
while zombies() and time.monotonic() < end: time.sleep(0.01)
print(zombies())
"""


def test_orphans_are_reaped_by_the_small_init(arena: Arena) -> None:
    ended = arena.run(_ORPHANS, timeout=20, limits={**LIMITS, "processes": 200})
    assert ended.stdout.splitlines()[1:] == ["50", "0"], ended
