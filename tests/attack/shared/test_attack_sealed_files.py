"""A large file comes to a sandbox as a file in memory, which several sandboxes get: none keeps it.

The witness is the host, which looks at the descriptors of every process in the pid namespace of the
program. The control is the engine's own process, which has the file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from cellwall.embedded import Runner
from cellwall.engine.engine import Engine
from cellwall.languages.registry import LANGUAGES
from cellwall.languages.tools import is_installed
from cellwall.model.execution import Event, Execution
from conftest import Require

pytestmark = [pytest.mark.attack, pytest.mark.root]
_PROGRAM = """
#include <stdio.h>
#include <unistd.h>
static const char large[1000000] = {1};
int main(int argc, char **argv) {
    printf("%d %s\\n", large[argc - 2], argv[1]);
    fflush(stdout);
    for (;;) pause();
}
"""


def _having() -> list[int]:
    """Return the processes of this machine that have such a file open."""
    found = set()
    for each in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it was closed, or the process has ended
            if "cellwall-sealed" in os.readlink(each):
                found.add(int(each.parts[2]))
    return list(found)


def _inside(word: str) -> list[int]:
    """Return the processes of the sandbox in which a program has that argument."""
    spaces: dict[int, str] = {}
    found = ""
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # it has ended
            spaces[pid] = os.readlink(f"/proc/{pid}/ns/pid")
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if word.encode() in argv and spaces[pid] != os.readlink("/proc/self/ns/pid"):
                found = spaces[pid]
    return [pid for pid, space in spaces.items() if space == found]


def test_no_process_of_a_sandbox_has_the_file_its_program_came_in(require: Require) -> None:
    """Neither the one that was just compiled, nor the one that is in memory since."""
    require("C compiler", is_installed(LANGUAGES["c"]), "run: apt-get install gcc")
    source = f"{_PROGRAM}// {os.urandom(8).hex()}"
    runner = Runner(Engine)
    try:
        for is_cached in (False, True):
            word = f"word-{os.urandom(8).hex()}"
            looked: list[tuple[list[int], list[int]]] = []
            execution = _run(runner, source, word, looked)
            assert execution.stdout == f"1 {word}\n", execution.stderr
            assert execution.compilation is not None
            assert execution.compilation.is_cached is is_cached
            [(inside, having)] = looked
            assert len(inside) >= 2  # init and the program
            assert os.getpid() in having
            assert set(inside) & set(having) == set()
    finally:
        runner.close()


def _run(
    runner: Runner, source: str, word: str, looked: list[tuple[list[int], list[int]]]
) -> Execution:
    """Run the program until its wall time is over, and look once it has begun."""

    def on_event(event: Event) -> None:
        if event.kind == "stdout" and not looked:
            looked.append((_inside(word), _having()))

    return runner.call(
        lambda engine, put: engine.run(
            source, language="c", args=[word], limits={"wall_s": 2}, on_event=put
        ),
        on_event,
    )
