"""Programs of our own that embed the engine, each in a process that a test can spoil.

Not fixtures and no fail points of the product, which has none: a program here wraps functions of
ours, lowers its own limits or changes its own mount namespace before it begins, and prints what it
found as JSON lines `[name, value]`. What is left on the host is counted by whoever started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cellwall

SOURCES = str(Path(cellwall.__file__).parents[1])
_PROLOGUE = """
import asyncio, contextlib, json, os, signal, sys, time
import cellwall
from cellwall import CellwallError, Engine, EngineSettings

arguments = sys.argv[1:]

def say(name, value):
    print(json.dumps([name, value]), flush=True)

def bare(**settings):
    # The jail alone: where it cannot, another runtime of this machine would serve.
    settings.setdefault("runtimes", ("jail",))
    return Engine(settings=EngineSettings(pool_min=0, pool_max=0, **settings))

async def tried(work):
    '''What it gave, or the words of our error; any other error ends the program.'''
    try:
        return {"stdout": (await work).stdout}
    except CellwallError as error:
        return {"error": str(error), "code": error.code, "remedy": error.remedy}
"""


def _command(program: str, arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-c", _PROLOGUE + program, *arguments]


def _environment(environ: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES, **(environ or {})}


def embedded(
    program: str,
    *arguments: str,
    before: Callable[[], None] | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 50.0,
) -> dict[str, Any]:
    """Run a program to its end; what it said by name, and its `stderr`. A failure of it raises."""
    done = subprocess.run(
        _command(program, arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env=_environment(environ),
        preexec_fn=before,
        start_new_session=True,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-4000:]}"
    said: dict[str, Any] = dict(map(json.loads, done.stdout.splitlines()))
    return {**said, "stderr": done.stderr}


class Running:
    """A program of ours that goes on while the test does something to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Made by `running`."""
        self.process = process

    @property
    def pid(self) -> int:
        """Of the program."""
        return self.process.pid

    def hear(self, name: str) -> Any:
        """The value of the next line, which must be the one called `name`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended before it said {name!r}"
        said, value = json.loads(line)
        assert said == name, (said, value)
        return value

    def go_on(self) -> None:
        """Let a program that waits in `sys.stdin.readline()` go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def running(
    program: str, *arguments: str, environ: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start a program; it is killed at the end of the block if it still runs."""
    with subprocess.Popen(
        _command(program, arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(environ),
        start_new_session=True,
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
