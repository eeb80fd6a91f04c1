"""A session breaks every limit again and again, in cells and commands, and is still there.

Witnesses outside: the kernel's verdict of each end, the file, the second context and the server in
the background at the end, and the memory of this process, which holds the engine. The control is
each program with a limit that it does not meet.
"""

from __future__ import annotations

import gc
import os

import pytest

from cellwall import AsyncSandbox, Verdict
from kit.arena import Arena

pytestmark = [pytest.mark.attack, pytest.mark.cgroups]

_DEAF = "import signal; signal.signal(2, signal.SIG_IGN)\n"
_HOG = "kept = []\nwhile True: kept.append(bytearray(b'x') * (4 << 20))"
_CROWD = """
import os, time
for _ in range(200):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
time.sleep(600)"""
_ESCAPE = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(15, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
"""
_BREAKS = (
    (_DEAF + _ESCAPE + "import time\nwhile True: time.sleep(60)", 0.3, Verdict.WALL_TIME),
    (_DEAF + "import os\nos.fork()\nwhile True: pass", 20.0, Verdict.CPU_TIME),
    (_HOG, 20.0, Verdict.MEMORY),
    (_CROWD, 20.0, Verdict.PROCESSES),
)
_LIMITS = {"memory_mb": 96, "processes": 30, "cpu_s": 0.4, "wall_s": 30.0}
_SERVER = "exec python3 -m http.server --bind 127.0.0.1 8765"
_CALL = """
import time, urllib.request
for _ in range(500):
    try:
        print(urllib.request.urlopen('http://127.0.0.1:8765/data.txt').read().decode())
        break
    except OSError: time.sleep(0.01)"""
_LEFT = """
import os
found = [name for name in os.listdir('/proc') if name.isdigit()]
print(len(found))"""


def _resident_kib() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


async def _round(sandbox: AsyncSandbox) -> None:
    for code, limit_s, verdict in _BREAKS:
        cell = await sandbox.run(code, timeout=limit_s)
        assert cell.verdict is verdict, cell
        after = await sandbox.run("print('mine' in globals())\nmine = 1")
        assert (after.verdict, after.stdout) == (Verdict.OK, "False\n"), after
        assert "new one" in " ".join(after.outcome.notes)
        command = await sandbox.commands.run(["python3", "-c", code], timeout=limit_s)
        assert command.outcome.verdict is verdict, command
        kept = await sandbox.run("mine")
        assert kept.text == "1", kept


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(3, id="few"),
        pytest.param(100, id="hundred", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_session_outlives_every_limit_in_every_round(arena: Arena, rounds: int) -> None:
    async def attack() -> None:
        async with arena.sandbox(limits=_LIMITS) as sandbox:
            await sandbox.files.write("data.txt", "kept")
            await sandbox.contexts.create("other")
            assert (await sandbox.run("theirs = 45", context="other")).ok
            server = await sandbox.commands.start(_SERVER)
            assert (await sandbox.run(_CALL, context="other")).stdout == "kept\n"
            processes = (await sandbox.run(_LEFT, context="other")).stdout
            await _round(sandbox)
            before = _resident_kib()
            for _ in range(rounds - 1):
                await _round(sandbox)
            grown_kib = _resident_kib() - before
            assert (await sandbox.run("theirs", context="other")).text == "45"
            assert (await sandbox.run(_CALL)).stdout == "kept\n"
            assert (await sandbox.run(_LEFT, context="other")).stdout == processes
            assert server.is_running
            assert grown_kib < 8 << 10, f"{grown_kib} KiB more"

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("code", [code for code, _, _ in _BREAKS], ids=range(len(_BREAKS)))
def test_control_each_program_within_its_limits_ends_well(arena: Arena, code: str) -> None:
    """The same without the loops, the waiting, and with room for what it makes."""
    bounded = code.replace("while True: kept", "for _ in range(100): kept").replace("600", "0")
    bounded = bounded.replace("while True: pass", "").replace("while True: time.sleep(60)", "")

    async def attack() -> None:
        async with arena.sandbox(limits={"memory_mb": 1024, "processes": 400}) as sandbox:
            ended = await sandbox.run(bounded, timeout=20)
            assert ended.verdict is Verdict.OK, ended

    arena.do(attack())
