"""What every language has to do, for `test_conformance`: one program each, and what is expected.

`programs/all.<ending>` does what its first argument says; so a compiled language is compiled once
and everything else comes from the cache. The invariant: what is expected is the same for all;
a difference is in `WITHOUT` or `ENDS`, with its reason.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellwall.languages.entries.language import Language
from cellwall.languages.tools import SEARCH_PATH
from cellwall.model.outcome import Verdict
from kit.places import TESTS

PROGRAMS = TESTS / "languages" / "programs"
UNICODE = "grüße 你好 🙂\n"
BROKEN = {"php": "<?php (((\n"}
"""Sources that are none, where three brackets are one."""

WITHOUT = {
    ("bomb", "pascal"): "its run time library has no fork",
    ("connect", "lua"): "no sockets in the language",
    ("connect", "haskell"): "no sockets in what comes with the compiler",
    ("connect", "fortran"): "no sockets in the language",
    ("connect", "octave"): "no sockets in what comes with it",
    ("connect", "pascal"): "its units for sockets are another package",
}
_SOON_S = 5.0
ENDS = {
    # These try to fork again and again (Bash for 15 s); the note says that the limit was reached.
    ("bomb", "bash"): Verdict.WALL_TIME,
    ("bomb", "ruby"): Verdict.WALL_TIME,
}


@dataclass(frozen=True)
class Case:
    """One thing to do, and how it has to end."""

    verdict: Verdict = Verdict.OK
    stdout: str | None = None
    args: tuple[str, ...] = ()
    stdin: str | None = None
    exit_code: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "echo": Case(stdout="ham\neggs\n", stdin="ham\neggs\n"),
    "words": Case(stdout="a b\n$HOME;\né\n", args=("a b", "$HOME;", "é")),
    "text": Case(stdout=UNICODE),
    "leave": Case(Verdict.NONZERO_EXIT, exit_code=3),
    "wait": Case(Verdict.WALL_TIME, options={"timeout": 1.0}),
    "spin": Case(Verdict.CPU_TIME, options={"limits": {"cpu_s": 1.0, "wall_s": 50.0}}),
    "hog": Case(Verdict.MEMORY, options={"limits": {"memory_mb": 256, "wall_s": 50.0}}),
    "bomb": Case(Verdict.PROCESSES, options={"limits": {"processes": 40, "wall_s": 20.0}}),
    "flood": Case(Verdict.OUTPUT, options={"limits": {"output_kb": 64}}),
    "file": Case(stdout="kept\n"),
}


def options(name: str, language: str) -> dict[str, Any]:
    """Return how a case is run: what ends by the clock need not have as long as the slowest."""
    given = CASES[name].options
    if (name, language) not in ENDS:
        return given
    return {**given, "limits": {**given["limits"], "wall_s": _SOON_S}}


def program(language: Language) -> str:
    """Return the source that does it all."""
    return (PROGRAMS / f"all{language.extensions[0]}").read_text(encoding="utf-8")


def does(case: str, language: Language) -> bool:
    """Whether the language can do it at all."""
    return (case, language.name) not in WITHOUT


class Witness:
    """A port on loopback that knows who has connected to it."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._peers: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                connection, peer = self._server.accept()
                connection.close()
                self._peers.put(peer[1])

    def count(self) -> int:
        """Return how many have connected since the last count.

        Connections are taken in their order: when ours has been, all before it have been.
        """
        with socket.create_connection(("127.0.0.1", self.port)) as own:
            mine = own.getsockname()[1]
            found = 0
            while self._peers.get(timeout=20) != mine:
                found += 1
            return found

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()


def run_outside(language: Language, args: list[str], place: Path) -> str:
    """Run the program on the host, as the control of what a sandbox denies; its stdout."""
    source = program(language)
    file = language.name_of(source)
    (place / file).write_text(source, encoding="utf-8")
    (place / "build").mkdir()
    env = {**os.environ, **language.env, "PATH": ":".join(SEARCH_PATH), "HOME": str(place)}
    if language.compile:
        argv = language.compile_command(file, build="build")
        subprocess.run(argv, cwd=place, env=env, check=True, timeout=50)
    argv = language.command(file, args, build="build")
    done = subprocess.run(
        argv, cwd=place, env=env, check=True, timeout=50, capture_output=True, encoding="utf-8"
    )
    return done.stdout
