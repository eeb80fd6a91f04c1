"""FI-07, FI-12, FI-41: what happens inside to init, to the work area and on the channel.

Init is killed and stopped from outside; the guest's bundle is replaced by one whose init
says garbage. Each has its cause named within two seconds, and a neighbour that notices nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings, Execution, Verdict
from cellwall.engine.attempts.aftermath import ENDING_S
from cellwall.runtimes.jail.starting import bundle as bundle_room
from cellwall.runtimes.shared import guest_bundle
from kit.arena import LIMITS, Arena, fresh_peak_kib, peak_kib

pytestmark = pytest.mark.attack
_SOON_S = 2.0


@pytest.fixture(autouse=True)
def _settled(arena: Arena) -> None:
    arena.settle()


def _init(sandbox: AsyncSandbox) -> int:
    pid: int = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
    return pid


_BUSY = {
    "waits": "import time\nprint('up', flush=True)\ntime.sleep(60)",
    "forks": "import os, signal\nsignal.signal(17, signal.SIG_IGN)\nprint('up', flush=True)\n"
    "while True:\n    try:\n        os.fork() or os._exit(0)\n    except OSError: pass",
    "spins": "print('up', flush=True)\nwhile True: pass",
}


@pytest.mark.parametrize("busy", _BUSY)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_init_that_is_killed_or_stopped_under_a_cell_ends_it_with_a_name(
    arena: Arena, busy: str, how: str
) -> None:
    """Stopped it cannot be told to stop the program: the wall clock ends it, its grace, and the
    time in which init would have said that it has."""

    async def attack() -> tuple[Execution, float]:
        async with arena.sandbox() as neighbour, arena.sandbox() as sandbox:
            up = asyncio.Event()
            cell = sandbox.run(_BUSY[busy], timeout=3, on_event=lambda _: up.set())
            task = asyncio.ensure_future(cell)
            await up.wait()
            began = time.monotonic()
            os.kill(_init(sandbox), getattr(signal, how))
            ended = await task
            took_s = time.monotonic() - began
            assert (await neighbour.run("6 * 7")).ok
            assert sandbox.status == "stopped"
            return ended, took_s

    with arena.leaving_nothing():
        ended, took_s = arena.do(attack())
    assert ended.stdout == "up\n"
    if how == "SIGKILL":
        assert ended.verdict is Verdict.SANDBOX_ERROR
        assert "the sandbox ended under it" in ended.outcome.notes[0]
        assert took_s < _SOON_S
    else:
        assert ended.verdict is Verdict.WALL_TIME
        assert took_s < 3 + ENDING_S + _SOON_S


_FULL = {
    "bytes": ("with open('big', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", "big"),
    "inodes": (
        "import os\nos.mkdir('many')\nfor n in range(10**6): open(f'many/{n}', 'x')",
        "many",
    ),
}


@pytest.mark.parametrize("kind", _FULL)
def test_full_work_area_is_named_leaves_its_neighbour_alone_and_can_be_emptied(
    arena: Arena, kind: str
) -> None:
    code, made = _FULL[kind]
    small = {"disk_mb": 8, "inodes": 500, "memory_mb": 256, "file_mb": 64}

    async def attack() -> None:
        async with arena.sandbox(limits=small) as full, arena.sandbox(limits=small) as neighbour:
            ended = await full.run(code, timeout=20)
            assert ended.verdict is Verdict.DISK, ended.outcome
            assert ended.error is not None
            assert "No space left" in ended.error.value
            assert (await neighbour.run("open('mine', 'w').write('x' * 99999)")).ok
            refused = await full.run("open('more', 'w').write('x' * 99999)")
            assert refused.verdict is Verdict.DISK
            assert (await full.run(f"import shutil, os\nos.system('rm -r {made}')")).ok
            assert (await full.run("open('more', 'w').write('x' * 99999)")).ok

    with arena.leaving_nothing():
        arena.do(attack())


_GARBAGE = {
    "four GiB": "struct.pack('>II', 0xFFFFFFFF, 0xFFFFFFFF) + b'x' * 65536",
    "noise": "os.urandom(100_000)",
    "nothing but zeros": "bytes(1_000_000)",
    "a frame cut short": "struct.pack('>II', 20, 1000) + b'{}'",
    "the wrong number": "_frame({'ev': 'done', 'id': 77, 'exit_code': 0})",
    "a second ready": "_frame({'ev': 'ready', 'id': 0, 'protocol': 1, 'python': '3'})",
    "metadata without end": "_frame({'ev': 'error', 'id': 1}, b'[' * 900_000)",
}
_SPEAK = """
    if program.header["output_bytes"] != {marked}:
        _tell_end(program, channel)  # a rehearsal's
        patience.poll()
        return
    import json, os, struct
    def _frame(header, body=b''):
        text = json.dumps(header).encode()
        return struct.pack('>II', len(text), len(body)) + text + body
    data = {what}
    os.set_blocking(channel, True)
    while data:
        data = data[os.write(channel, data):]
    if {hangs_up}:
        os._exit(0)
"""
_MARKED_KB = 777


def _speaking(what: str, target: Path) -> Any:
    """A bundle whose init says `what` when the first program has ended, instead of `done`."""
    real = guest_bundle.build_bundle
    hangs_up = what == _GARBAGE["a frame cut short"]
    speak = _SPEAK.format(what=what, hangs_up=hangs_up, marked=_MARKED_KB * 1024)

    def build(*given: Any) -> Path:
        with zipfile.ZipFile(real(*given)) as old, zipfile.ZipFile(target, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if name == "cellwall/guest/init/first_program.py":
                    marked = b"    _tell_end(program, channel)\n"
                    assert data.count(marked) == 1
                    data = data.replace(marked, speak.encode())
                if name != "cellwall/guest/init/first_program.pyc":
                    new.writestr(name, data)
        target.chmod(0o644)
        return target

    return build


@pytest.mark.parametrize("what", _GARBAGE)
def test_garbage_on_the_channel_ends_the_sandbox_and_costs_us_nothing(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_init: None, what: str
) -> None:
    build = _speaking(_GARBAGE[what], tmp_path / "hostile.pyz")
    limits = {**LIMITS, "output_kb": _MARKED_KB}

    async def attack() -> tuple[Execution, float, int]:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            with monkeypatch.context() as patched:
                patched.setattr(bundle_room, "build_bundle", build)
                await (await engine.runtime()).warm(await engine.template("python"))
            before_kib, began = fresh_peak_kib(), time.monotonic()
            ended = await engine.run("print('up')", timeout=20, limits=limits)
            return ended, time.monotonic() - began, peak_kib() - before_kib
        finally:
            await engine.aclose()

    with arena.leaving_nothing():
        ended, took_s, growth_kib = asyncio.run(attack())
    assert ended.verdict is Verdict.SANDBOX_ERROR, ended.outcome
    assert ended.stdout == "up\n"
    if what != "a frame cut short":
        assert "broke the guest protocol" in ended.outcome.notes[0]
    assert took_s < 10
    assert growth_kib < 16 * 1024
    assert arena.run("print('fine')").ok
