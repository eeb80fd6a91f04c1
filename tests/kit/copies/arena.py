"""An arena whose sandboxes are copies: a fresh session is copied, ended, and its copy attacked.

Probes in Python run as cells of a copy. Not those of other languages, with files, or with ways of
starting that are a program's own: `run` refuses them, so that no test runs elsewhere unnoticed.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from cellwall import AsyncSandbox, Engine, EngineSettings, Execution, Verdict
from kit.arena import _SAY, LIMITS, Arena

_OF_A_SESSION = {"limits", "timeout"}


class CopyArena(Arena):
    """An arena of copies."""

    def __init__(self, **choice: Any) -> None:
        """What copies of this runtime share, as the base of a fork-server, exists from here on."""
        made = lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0))  # noqa: E731
        super().__init__(made, **choice)
        self.copies = 0
        # A fork inside costs a large process on gVisor, and a probe has hundreds.
        self._patience = 6 if choice.get("runtime") == "gvisor" else 1
        self.run("0")
        self.settle()

    async def arun(self, code: str, language: str = "python", **options: Any) -> Execution:
        """Run a probe as a cell of a copy."""
        if not hasattr(self, "copies"):  # the first run of all makes the fork-server
            return await super().arun(code, language, **options)
        if language != "python" or not options.keys() <= _OF_A_SESSION:
            raise AssertionError(f"no cell of a copy: {language} with {sorted(options)}")
        nonce = secrets.token_hex(8)
        timeout = options.get("timeout", 5) * self._patience
        async with self.sandbox(limits=options.get("limits", {})) as copy:
            done = await copy.run(_SAY[language].format(nonce) + code, timeout=timeout)
        # A cell has no exit code, and a program that came to its end has one.
        code_of = {Verdict.OK: 0}.get(done.verdict, done.outcome.exit_code)
        execution = replace(done, outcome=replace(done.outcome, exit_code=code_of))
        if not execution.stdout.startswith(nonce):
            raise AssertionError(f"the probe did not run: {execution.outcome} {execution.stderr}")
        return execution

    @contextlib.asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncIterator[AsyncSandbox]:
        """Have a copy, whose source has ended."""
        options["limits"] = {**LIMITS, **options.get("limits", {})}
        source = await self.engine.create_sandbox(**{**self.choice, **options})
        try:
            await source.run("0")
            (fork,) = await source.fork()
        finally:
            await source.close()
        self.copies += 1
        try:
            yield fork.sandbox
        finally:
            await fork.sandbox.close()
