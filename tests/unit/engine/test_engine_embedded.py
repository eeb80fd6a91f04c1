"""The library's front page: threads, forks, interrupts, import cost; `process` runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.places import ROOT

SRC = ROOT / "src"

PRELUDE = """
import os, sys, pathlib
from cellwall import embedded
from cellwall.engine import engine, loop_engines
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.testing.bare import BareTemplates
import cellwall
base = pathlib.Path(sys.argv[1])
templates = BareTemplates(base / "env")
def make(**options):
    settings = EngineSettings(allow_process=True)
    return Engine(base / "state", settings, templates=templates, **options)
engine.Engine = loop_engines.Engine = make
CHOICE = dict(runtime="process", isolation="process")
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def run(code: str) -> str:
        answer = subprocess.run(
            [sys.executable, "-W", "error", "-c", PRELUDE + code, str(tmp_path)],
            env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=50,
        )
        left = list((tmp_path / "state" / "process").glob("*"))
        return answer.stdout + (f"left behind: {left}" if left else "")

    return run


def test_import_brings_nothing_heavy() -> None:
    code = "import sys; import cellwall; print(len([m for m in sys.modules if 'cellwall' in m]))"
    environment = {"PYTHONPATH": str(SRC)}
    found = subprocess.check_output([sys.executable, "-c", code], env=environment)
    assert found == b"1\n"


def test_every_public_name_is_there() -> None:
    import cellwall

    assert all(getattr(cellwall, name) is not None for name in cellwall.__all__)
    with pytest.raises(AttributeError):
        _ = cellwall.no_such_name


def test_program_that_never_closes_leaves_nothing(program: Callable[[str], str]) -> None:
    code = """
print(cellwall.run("print(1)", **CHOICE).stdout, end="")
sandbox = cellwall.Sandbox(**CHOICE)
print(sandbox.run("40 + 2").text)
"""
    assert program(code) == "1\n42\n"


def test_forked_child_uses_an_engine_of_its_own(program: Callable[[str], str]) -> None:
    code = """
sandbox = cellwall.Sandbox(**CHOICE)
sandbox.run("x = 1")
pid = os.fork()
if pid == 0:
    print(cellwall.run("print('child')", **CHOICE).stdout, end="", flush=True)
    embedded._default.close()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
print(sandbox.run("x + 1").text, cellwall.run("print('parent')", **CHOICE).stdout, end="")
"""
    assert program(code) == "child\n0\n2 parent\n"


def test_asyncio_run_closes_its_engine(program: Callable[[str], str]) -> None:
    code = """
import asyncio
async def main():
    async with cellwall.AsyncSandbox.create(**CHOICE) as sandbox:
        kinds = [event.kind async for event in sandbox.stream("print(1); 2")]
    return (await cellwall.arun("print(2)", **CHOICE)).stdout, kinds
for _ in range(2):
    print(*asyncio.run(main()))
print(os.listdir(base / "state" / "process"))
"""
    line = "2\n ['stdout', 'result', 'end']\n"
    assert program(code) == line * 2 + "[]\n"


def test_interrupt_of_the_caller_ends_the_run(program: Callable[[str], str]) -> None:
    code = """
import signal, threading, time
def on_event(event):
    signal.raise_signal(signal.SIGINT)
began = time.monotonic()
try:
    code = "print('up', flush=True)\\nimport signal; signal.pause()"
    cellwall.run(code, on_event=on_event, **CHOICE)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < 20)
print(cellwall.run("print('again')", **CHOICE).stdout, end="")
"""
    assert program(code) == "interrupted True\nagain\n"


def test_killed_embedder_takes_its_sandboxes_along(program: Callable[[str], str]) -> None:
    code = """
import select
from cellwall.runtimes.process.runtime import ProcessRuntime
import asyncio
pid = os.fork()
if pid == 0:
    sandbox = cellwall.Sandbox(**CHOICE)
    inner = sandbox.run("import os; print(os.getpid())").stdout.strip()
    (base / "inner").write_text(inner)
    os.kill(os.getpid(), 9)
os.waitpid(pid, 0)
inner = int((base / "inner").read_text())
try:
    has_ended = select.select([os.pidfd_open(inner)], [], [], 20)[0] != []
except ProcessLookupError:
    has_ended = True
print(has_ended)
print(asyncio.run(ProcessRuntime(base / "state").sweep()).removed)
"""
    assert program(code) == "True\n{'directories': 1}\n"
