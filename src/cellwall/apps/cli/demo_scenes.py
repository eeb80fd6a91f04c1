"""The demo: a tour on real input, then five hostile programs, then timings.

Not a test suite and not a bench: few runs, but real ones, each checked. Called by `cellwall demo`.
Invariant: nothing is said to be contained that was not checked from outside (the verdict, the
bait's secret, the listener that no program reached, the host's own processes).
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.apps.cli.console.table import show
from cellwall.apps.cli.console.terminal import Output
from cellwall.apps.engines import open_engine
from cellwall.apps.timings import FLOOR, PLAIN, WITH_PACKAGES, Samples, fresh, live_context
from cellwall.model.errors import UsageError
from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.model.execution import Execution

_PNG = b"\x89PNG\r\n\x1a\n"
_TIMING_SAMPLES = 15


class DemoFailure(Exception):
    """A step of the demo did not do what it should."""


def find_examples(given: Path | None) -> Path:
    """Return the folder of examples, or raise `UsageError`."""
    folder = given or Path(__file__).resolve().parents[4] / "examples"
    if not (folder / "orders.csv").is_file():
        raise UsageError(
            f"demo: there is no orders.csv in {folder}",
            remedy="run it from a clone of the project, or give --examples FOLDER",
        )
    return folder


@dataclass(frozen=True, slots=True)
class Hostile:
    """A program that means harm, and what has to come of it."""

    title: str
    file: str
    limits: dict[str, Any]
    contained: Callable[[Execution], bool]
    evidence: Callable[[Execution], str]


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


HOSTILE: tuple[Hostile, ...] = (
    Hostile(
        "fork bomb",
        "fork_bomb.py",
        {"processes": 50, "wall_s": 10},
        lambda e: e.verdict is Verdict.PROCESSES,
        lambda e: _first_line(e.stderr) or "; ".join(e.outcome.notes),
    ),
    Hostile(
        "memory hog",
        "memory_hog.py",
        {"memory_mb": 128, "wall_s": 20},
        lambda e: e.verdict is Verdict.MEMORY,
        lambda e: f"peak {e.outcome.usage.memory_peak_bytes >> 20} MiB of 128 allowed",
    ),
    Hostile(
        "infinite loop",
        "endless_loop.py",
        {"wall_s": 1},
        lambda e: e.verdict is Verdict.WALL_TIME,
        lambda e: (
            f"stopped after {e.outcome.usage.wall_s:.2f} s, "
            f"{e.outcome.usage.cpu_s:.2f} s of CPU time"
        ),
    ),
    Hostile(
        "reads the host, calls home",
        "peek_and_phone.py",
        {"wall_s": 20},
        lambda e: e.verdict is Verdict.OK and "GOT" not in e.stdout,
        lambda e: f"{e.stdout.count(': refused')} of {len(e.stdout.splitlines())} attempts refused",
    ),
    Hostile(
        "output flood",
        "flood.py",
        {"wall_s": 20, "output_kb": 64},
        lambda e: e.verdict is Verdict.OUTPUT and len(e.stdout) <= 64 << 10,
        lambda e: (
            f"wrote {e.outcome.usage.stdout_bytes / 1e6:.0f} MB, {len(e.stdout) >> 10} KiB kept"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Bait:
    """Things of this host that a program inside must not reach."""

    secret: str
    path: Path
    listener: socket.socket

    def environment(self) -> dict[str, str]:
        """Return what tells a hostile program where the bait lies."""
        return {
            "BAIT": str(self.path),
            "BAIT_PORT": str(self.listener.getsockname()[1]),
            "BAIT_PID": str(os.getpid()),
        }

    def was_reached(self) -> bool:
        """Report whether a program connected."""
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@contextmanager
def bait() -> Iterator[Bait]:
    """Lay out a secret file and a listening port for the length of a block."""
    secret = secrets.token_hex(16)
    with tempfile.NamedTemporaryFile("w", prefix="cellwall-bait-") as file:
        file.write(secret)
        file.flush()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            yield Bait(secret, Path(file.name), listener)


class Demo:
    """One tour."""

    def __init__(self, examples: Path, output: Path, isolation: str) -> None:
        self._examples = examples
        self._output = output
        self._isolation = isolation
        self._out = Output(sys.stdout)
        self._engine: Engine

    async def run(self) -> None:
        """Do every step, or raise `DemoFailure` at the first that fails."""
        begun = time.monotonic()
        async with open_engine(pool=4) as engine:
            self._engine = engine
            await self._analyse()
            await self._session()
            await self._languages()
            await self._stdin()
            await self._hostile()
            await self._timings()
        self._say(f"\nAll steps done in {time.monotonic() - begun:.1f} s.")

    # ── on real input ──

    async def _analyse(self) -> None:
        self._title("A CSV file, analysed with pandas in a fresh sandbox")
        execution = await self._program(
            "analyse_orders.py",
            template="data",
            files={"orders.csv": (self._examples / "orders.csv").read_bytes()},
            collect=["revenue.png"],
        )
        image = execution.files.get("revenue.png", b"")
        if not image.startswith(_PNG):
            raise DemoFailure("the analysis brought back no PNG chart")
        self._output.mkdir(parents=True, exist_ok=True)
        target = self._output / "revenue.png"
        target.write_bytes(image)
        self._say(execution.stdout.rstrip())
        self._say(f"result: {execution.result}")
        self._say(f"chart: {target} ({len(image) >> 10} KiB)")
        self._say(self._how(execution))

    async def _session(self) -> None:
        self._title("A session keeps its state")
        sandbox = await self._engine.create_sandbox(template="python", isolation=self._isolation)
        try:
            answers = []
            for code in ("numbers = [3, 1, 2]", "numbers.sort()", "numbers + [sum(numbers)]"):
                answers.append((await sandbox.run(code)).text)
                self._say(f">>> {code}")
        finally:
            await sandbox.close()
        self._say(str(answers[-1]))
        if answers != [None, None, "[1, 2, 3, 6]"]:
            raise DemoFailure(f"the session answered {answers!r}, at last not [1, 2, 3, 6]")

    async def _languages(self) -> None:
        from cellwall.languages.registry import by_extension
        from cellwall.languages.tools import is_installed

        self._title("Other languages")
        for file in ("hello.sh", "hello.js"):
            language = by_extension(Path(file).suffix)
            if language is None or not is_installed(language):
                self._say(f"{file}: skipped, its interpreter is not installed on this machine")
                continue
            execution = await self._program(file, language=language.name)
            self._say(execution.stdout.rstrip())

    async def _stdin(self) -> None:
        self._title("A program that reads standard input")
        text = (self._examples / "analyse_orders.py").read_text(encoding="utf-8")
        execution = await self._program("word_count.py", stdin=text)
        self._say(execution.stdout.rstrip())
        if not execution.stdout:
            raise DemoFailure("the program that reads standard input printed nothing")

    async def _program(
        self,
        file: str,
        **options: Any,  # noqa: ANN401 - those of Engine.run
    ) -> Execution:
        code = (self._examples / file).read_text(encoding="utf-8")
        execution = await self._engine.run(code, isolation=self._isolation, **options)
        if not execution.ok:
            raise DemoFailure(
                f"{file} ended with {execution.verdict.value}: "
                f"{'; '.join(execution.outcome.notes)} {execution.stderr[-500:]}"
            )
        return execution

    # ── against harm ──

    async def _hostile(self) -> None:
        self._title("Five hostile programs")
        rows = []
        with bait() as trap:
            for program in HOSTILE:
                execution = await self.attack(self._engine, program, trap)
                rows.append((program.title, execution.verdict.value, program.evidence(execution)))
        show(("program", "verdict", "evidence"), rows)
        after = await self._engine.run(PLAIN, isolation=self._isolation)
        if after.stdout != "1\n":
            raise DemoFailure("after the hostile programs a plain one did not run")
        self._say("A plain program right afterwards: ok.")

    async def attack(self, engine: Engine, program: Hostile, trap: Bait) -> Execution:
        """Run one hostile program; raise `DemoFailure` unless it was contained."""
        code = (self._examples / "hostile" / program.file).read_text(encoding="utf-8")
        execution = await engine.run(
            code, limits=program.limits, isolation=self._isolation, env=trap.environment()
        )
        has_leaked = trap.secret in execution.stdout + execution.stderr or trap.was_reached()
        if has_leaked or not program.contained(execution):
            raise DemoFailure(
                f"{program.title} was not contained as it should be: "
                f"{execution.verdict.value}, {'; '.join(execution.outcome.notes)}\n"
                f"{execution.stdout[:600]}{execution.stderr[-600:]}"
            )
        return execution

    # ── how fast ──

    async def _timings(self) -> None:
        self._title("Timings, each beside the start of a bare interpreter")
        options: dict[str, Any] = {"template": "python", "isolation": self._isolation}
        data: dict[str, Any] = {"template": "data", "isolation": self._isolation}
        n = _TIMING_SAMPLES
        figures = (
            (
                "fresh sandbox, print(1)",
                await fresh(self._engine, PLAIN, options, n, parked=True),
            ),
            (
                "fresh sandbox, import numpy, pandas",
                await fresh(self._engine, WITH_PACKAGES, data, n, parked=True),
            ),
            ("next execution in a session", await live_context(self._engine, options, n)),
        )
        rows = [_timing_row(what, figure) for what, figure in figures]
        floor = figures[0][1].floor_ms
        rows.append((f"bare {' '.join(FLOOR)}", f"{floor:.2f} ms", "1.00"))
        show(("what", "p50", "of bare Python"), rows)
        self._say(
            "p50 of 15, taken in turns, a parked sandbox ready; "
            "the repository's `make bench` measures more."
        )

    def _how(self, execution: Execution) -> str:
        isolation = execution.outcome.isolation
        usage = execution.outcome.usage
        return (
            f"ran in {usage.wall_s * 1000:.0f} ms, runtime {isolation.runtime}, "
            f"level {isolation.level.label}"
        )

    def _title(self, text: str) -> None:
        self._say(f"\n── {text} ──")

    def _say(self, text: str) -> None:
        self._out.write(f"{text}\n")


def _timing_row(what: str, taken: Samples) -> tuple[str, str, str]:
    return what, f"{taken.ours_ms:.2f} ms", f"{taken.ratio:.2f}"
