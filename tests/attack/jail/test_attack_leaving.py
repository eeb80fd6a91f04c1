"""Announced ends: whoever announces one that is not coming changes nothing (design/0014).

A program's parent hears by a signal that it is about to leave, and then asks the kernel. The signal
may be sent by anything inside; these programs send it by the thousand and go on. What proves that
they ran is printed after it, and the control is an answer that comes before the program's memory is
gone, so that there is something to lie about.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from cellwall import Verdict
from kit.arena import Arena

pytestmark = pytest.mark.attack
_FALSE_ALARMS = """
import os, signal, time
def alarm():
    for _ in range(2000):
        os.kill(1, signal.SIGCHLD)
"""
_PROGRAMS = [
    pytest.param(
        _FALSE_ALARMS + "alarm()\nprint('after', flush=True)\nos._exit(6)", id="by-the-program"
    ),
    pytest.param(
        _FALSE_ALARMS + "import subprocess, sys\n"
        "if os.fork() == 0:\n    alarm(); os._exit(0)\n"
        "print('after', os.wait()[1], flush=True)\nsys.exit(6)",
        id="by-a-child",
    ),
    pytest.param(
        _FALSE_ALARMS + "import ctypes, threading\n"
        "threading.Thread(target=lambda: (alarm(), time.sleep(0.2), os.write(1, b'after\\n'), "
        "os._exit(6))).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)",
        id="without-its-first-thread",
    ),
    pytest.param(
        _FALSE_ALARMS + "import ctypes, sys\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "alarm()\nprint('after')\nsys.exit(6)",
        id="not-dumpable",
    ),
]


@pytest.mark.parametrize("code", _PROGRAMS)
def test_announcement_of_an_end_that_does_not_come_ends_nothing(arena: Arena, code: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(code, timeout=20)
    assert (ended.verdict, ended.exit_code) == (Verdict.NONZERO_EXIT, 6), ended
    assert "after" in ended.stdout


_LIE = """
const fs = require('fs');
const { spawnSync } = require('child_process');
const lie = `
  const fs = require('fs');
  const folder = '/proc/${process.ppid}/fd/';
  let told = 0;
  for (const fd of fs.readdirSync(folder)) {
    try {
      if (Number(fd) < 3 || !fs.statSync(folder + fd).isFIFO()) continue;
      fs.writeFileSync(folder + fd, JSON.stringify({ ev: 'WORD' }) + String.fromCharCode(10));
      told++;
    } catch {}
  }
  console.log(told);
`;
const child = spawnSync(process.execPath, ['-e', lie]);
for (let n = 0; n < 2000; n++) process.kill(1, 'SIGCHLD');
console.log('after', child.stdout.toString());
process.exitCode = 6;
"""


@pytest.mark.needs("node")
def test_interpreter_that_is_said_to_leave_goes_on(arena: Arena) -> None:
    with arena.leaving_nothing():
        ended = arena.run(_LIE.replace("WORD", "leaving"), language="javascript", timeout=20)
    assert (ended.verdict, ended.exit_code) == (Verdict.NONZERO_EXIT, 6), ended
    assert int(ended.stdout.split("after")[1]) >= 2  # both ends of two pipes are there


@pytest.mark.needs("node")
def test_what_is_said_in_the_name_of_an_interpreter_is_heard(arena: Arena) -> None:
    """The control: the same lie with a word that is none ends the context, so it gets there."""
    with arena.leaving_nothing():
        ended = arena.run(_LIE.replace("WORD", "nonsense"), language="javascript", timeout=20)
    assert ended.exit_code == 70, ended
    assert "broke the protocol" in ended.stderr


_LARGE = """
import mmap, sys
sys.room = mmap.mmap(-1, 192 << 20)
for _ in range(192):
    sys.room.write(bytes(1 << 20))
print('large')
"""


@pytest.mark.parametrize("code", [_LARGE, _LARGE + "sys.exit(3)"])
def test_end_is_told_with_its_code_and_all_that_was_printed(arena: Arena, code: str) -> None:
    """Every byte and the code, though nobody has waited for the process yet."""
    printed = "x" * 60_000
    code = f"print('{printed}')\n{code}"
    with arena.leaving_nothing():
        ended = arena.run(code, timeout=20, limits={"memory_mb": 512})
    assert ended.exit_code == (3 if "sys.exit" in code else 0)
    assert ended.stdout.endswith(f"{printed}\nlarge\n")


@pytest.mark.cgroups
def test_end_is_told_before_the_kernel_has_taken_the_program_apart(arena: Arena) -> None:
    """The control: the process is still there, on its way out, when its end is told."""

    async def look() -> list[str]:
        seen: list[str] = []

        def on_event(event: object) -> None:
            if getattr(event, "kind", "") == "end":
                seen.extend(_states())

        for _ in range(20):
            await arena.engine.run(_LARGE, limits={"memory_mb": 512}, timeout=20, on_event=on_event)
            await asyncio.sleep(0)
        return seen

    states = arena.do(look())
    assert any(state in "RDX" for state in states), states


def _states() -> list[str]:
    """States of the processes that have let go of their memory and are not dead yet."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[6]) & 4 and fields[20] == "0":
                    found.append(fields[0])
    return found
