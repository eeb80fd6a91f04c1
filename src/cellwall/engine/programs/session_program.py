"""Session program: a program of another language in a living sandbox, beside its contexts.

It is not a one-shot (`oneshot`): the sandbox is its owner's and stays, so a compiler runs in it,
too, as the owner's own commands do, and no product is kept for others. The source and the product
lie in a directory of their own, which is removed afterwards; the program starts in the home
directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.attempt import Attempt, OnEvent, Work, finish
from cellwall.engine.attempts.stages import report
from cellwall.engine.programs.compile_stage import staged
from cellwall.engine.programs.oneshot import described
from cellwall.languages import mistakes
from cellwall.model.ids import new_id
from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.stages import Stages
    from cellwall.languages.entries.language import Language
    from cellwall.model.execution import Execution
    from cellwall.model.limits import Limits


@dataclass(frozen=True, slots=True)
class SessionProgram:
    """One program for a living sandbox."""

    live: ClaimedSandbox
    language: Language
    file_name: str
    directory: str
    """Directory of its source, below the home directory."""
    limits: Limits

    @classmethod
    def of(
        cls, live: ClaimedSandbox, language: Language, code: str, limits: Limits
    ) -> SessionProgram:
        """Return a program with a directory of its own, which is not made yet."""
        directory = f".cellwall/{new_id()}"
        return cls(live, language, language.name_of(code), directory, limits)

    @property
    def path(self) -> str:
        """Path at which its source must be written."""
        return f"{self.directory}/{self.file_name}"

    @property
    def build(self) -> str:
        """Directory that its compiler writes to; the caller makes it."""
        return f"{self.directory}/build"

    async def compile(self, on_event: OnEvent | None, stages: Stages) -> Execution | None:
        """Compile it; return the execution if it ends here, None if there is something to run."""
        started_at = time.time()
        argv = self.language.compile_command(
            self.file_name, memory_mb=self.limits.memory_mb, build="build"
        )
        attempt = Attempt(self.live, self._work(argv, None, cwd=self.directory), None)
        attempt.hand_out(stages.begin)
        outcome = staged(await attempt.wait(), self.language)
        if outcome.verdict is Verdict.OK:
            return None
        output = attempt.recorder.stdout.text + attempt.recorder.stderr.text
        error = mistakes.compile_error(self.file_name, output)
        execution = replace(
            finish(attempt, outcome, self.language.name, started_at),
            stdout="",
            stderr=output,
            error=error if outcome.verdict is Verdict.COMPILE_ERROR else None,
        )
        report(execution, on_event)
        return execution

    def work(self, stdin: bytes | None) -> Work:
        """Return the work that runs it."""
        argv = self.language.command(self.path, memory_mb=self.limits.memory_mb, build=self.build)
        after = partial(described, self.language, self.file_name)
        return self._work(argv, stdin, after=after)

    def _work(
        self,
        argv: list[str],
        stdin: bytes | None,
        cwd: str = ".",
        after: Callable[..., Any] | None = None,
    ) -> Work:
        fields = {
            "argv": argv,
            "cwd": cwd,
            "env": dict(self.language.env),
            "stdin": "none" if stdin is None else "stream",
            "pty": None,
            "output_bytes": self.limits.output_bytes,
        }
        return Work("start", fields, self.limits, b"", stdin, self._stop, after)

    def _stop(self, number: int) -> None:
        self.live.channel.send({"op": "signal", "id": number, "signal": 9})
