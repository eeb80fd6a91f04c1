"""Compile stage: compile a program in a sandbox of its own, with its own limits and verdict.

Called by `engine` before the program runs. The compiler's product is read out through the guest,
kept (`compile_cache`) and written into a fresh sandbox. The invariant: only the product of a
compile reaches the run, and a caller's environment never reaches a compile.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cellwall.engine.attempts.attempt import finish
from cellwall.engine.programs import collect
from cellwall.engine.programs.compile_cache import CompileCache, Product, key_of
from cellwall.engine.programs.oneshot import begin, compile_stage, explain, missing
from cellwall.languages import mistakes
from cellwall.languages.entries.language import BUILD
from cellwall.languages.tools import Installed, detect
from cellwall.model.execution import Compilation, Execution
from cellwall.model.outcome import Outcome, Verdict
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.attempts.attempt import Attempt
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.stages import Stages
    from cellwall.engine.programs.requests import Plan
    from cellwall.languages.entries.language import Language

_PRODUCT_CAP_BYTES = 64 * 1024 * 1024
_OWN_END = frozenset({Verdict.NONZERO_EXIT, Verdict.SIGNALLED, Verdict.EXCEPTION})

SandboxWork = Callable[["ClaimedSandbox"], Awaitable["Compiled | Execution"]]
InSandbox = Callable[[SandboxWork], Awaitable["Compiled | Execution"]]
"""Function that does a job in a fresh sandbox, which is destroyed afterwards."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program that can run."""

    product: Product
    stage: Compilation


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Scope of a cached compile: the part of its inputs that is not in the request."""

    runtime: str
    template_digest: str
    tenant: str


class Compiler:
    """The compile stages of one engine."""

    def __init__(self, cache: CompileCache) -> None:
        """`cache` outlives the compiler."""
        self._cache = cache
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    async def compiled(
        self, plan: Plan, scope: CacheScope, in_sandbox: InSandbox, stages: Stages
    ) -> Compiled | Execution:
        """Return the product, new or from the cache, or the execution that ended in this stage."""
        tool = await asyncio.to_thread(detect, plan.language)
        if tool is None:
            raise missing(plan.language, f"{plan.language.tool} is not installed")
        key = _key(plan, scope, tool)
        name = (scope.tenant, key)
        # Concurrent requests for the same product wait for the first one's compile.
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                found = await asyncio.to_thread(self._cache.find, *name)
                if found is not None:
                    stage = _stage(plan, tool, found, None)
                    return Compiled(found, stage)

                async def job(live: ClaimedSandbox) -> Compiled | Execution:
                    return await self._compile(live, plan, tool, stages)

                made = await in_sandbox(job)
                if isinstance(made, Compiled):
                    product = await asyncio.to_thread(self._cache.keep, *name, made.product)
                    return replace(made, product=product)
                return made
        finally:
            if not lock.locked():
                self._locks.pop(name, None)

    async def _compile(
        self, live: ClaimedSandbox, plan: Plan, tool: Installed, stages: Stages
    ) -> Compiled | Execution:
        started_at = time.time()
        try:
            attempt = await begin(live, compile_stage(plan), None, None)
            attempt.hand_out(stages.begin)
            outcome = staged(await attempt.wait(), plan.language)
        except GuestRefused as refusal:
            raise explain(refusal, plan) from None
        recorder = attempt.recorder
        product = Product((), recorder.stdout.text, recorder.stderr.text)
        if outcome.verdict is Verdict.OK:
            try:
                files, lost = await collect.tree(live, BUILD, _PRODUCT_CAP_BYTES)
            except (GuestRefused, FrameError) as error:
                files, lost = {}, [str(error)]
            if lost:
                note = f"what was compiled could not be read: {lost[0]}"
                outcome = replace(outcome, verdict=Verdict.COMPILE_ERROR, notes=(note,))
                files = {}
            inner = tuple((path.removeprefix(f"{BUILD}/"), data) for path, data in files.items())
            product = replace(product, files=inner)
        stage = _stage(plan, tool, product, outcome)
        if outcome.verdict is Verdict.OK:
            return Compiled(product, stage)
        return _failed(attempt, plan, stage, outcome, started_at)


def staged(outcome: Outcome, language: Language) -> Outcome:
    """Return a compile's outcome as that of an execution: a limit keeps its verdict."""
    if outcome.verdict is Verdict.OK or outcome.verdict is Verdict.OUTPUT:
        return replace(outcome, verdict=Verdict.OK)  # it printed a lot, but it compiled
    if outcome.verdict in _OWN_END:
        code = outcome.exit_code
        how = f"ended by signal {outcome.signal}" if code is None else f"exit status {code}"
        note = f"{language.tool} could not compile it ({how})"
        return replace(outcome, verdict=Verdict.COMPILE_ERROR, notes=(note, *outcome.notes))
    note = "this was the compile stage, which has limits of its own (compile_limits)"
    return replace(outcome, notes=(*outcome.notes, note))


def _failed(
    attempt: Attempt, plan: Plan, stage: Compilation, outcome: Outcome, started_at: float
) -> Execution:
    output = stage.stdout + stage.stderr
    is_error = outcome.verdict is Verdict.COMPILE_ERROR
    return replace(
        finish(attempt, outcome, plan.language.name, started_at),
        stdout="",
        stderr=output,
        error=mistakes.compile_error(plan.file_name, output) if is_error else None,
        compilation=stage,
    )


def _stage(plan: Plan, tool: Installed, product: Product, outcome: Outcome | None) -> Compilation:
    return Compilation(
        version=tool.version,
        is_cached=outcome is None,
        stdout=product.stdout,
        stderr=product.stderr,
        outcome=outcome,
        limits=plan.compile_limits,
    )


def _key(plan: Plan, scope: CacheScope, tool: Installed) -> str:
    language = plan.language
    sources = [*plan.files, (plan.file_name, plan.source)]
    return key_of(
        {
            "language": language.name,
            "command": language.compile_command(
                plan.file_name,
                [path for path, _ in plan.files],
                plan.compile_options,
                memory_mb=plan.compile_limits.memory_mb,
            ),
            "env": dict(language.env),
            "tool": [tool.path, tool.version],
            "runtime": scope.runtime,
            "template": scope.template_digest,
            "sources": [[path, hashlib.sha256(data).hexdigest()] for path, data in sources],
        }
    )
