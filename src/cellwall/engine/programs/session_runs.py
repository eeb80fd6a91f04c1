"""Runs in a living sandbox: cells in its contexts, and programs of languages that have none.

Used by `sandbox`, whose `run` it is. The invariant: cells of one context run one after the other,
and `after` has heard of each before the next begins.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cellwall.engine.attempts.attempt import Attempt, OnStart, Work, finish
from cellwall.engine.attempts.file_errors import file_error
from cellwall.engine.attempts.stages import Stages
from cellwall.engine.parts.contexts import inside
from cellwall.engine.policy.arguments import check_tools, may_call
from cellwall.engine.programs.session_program import SessionProgram
from cellwall.model.errors import CellwallError, Conflict, UsageError
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.parts.contexts import Contexts
    from cellwall.engine.parts.files import Files
    from cellwall.languages.entries.language import Language
    from cellwall.model.execution import Execution
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Outcome
    from cellwall.surface.shared.callbacks import OnEvent
    from cellwall.surface.tools.tools import Offer, Tools


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as its caller wants it."""

    source: bytes
    stdin: bytes | None
    limits: Limits
    tools: Tools | None
    """Tools for this run; None: the sandbox's own."""
    on_event: OnEvent | None
    on_start: OnStart | None
    after: Callable[[Outcome], None]
    """Hears how it ended, before the next run in the same context begins."""


class SessionRuns:
    """The runs of one sandbox."""

    def __init__(
        self, live: ClaimedSandbox, contexts: Contexts, files: Files, tools: Offer | None
    ) -> None:
        """`tools` are the sandbox's own."""
        self._live = live
        self._contexts = contexts
        self._files = files
        self._tools = tools

    async def run(self, run: Run, language: Language | None, context: str) -> Execution:
        """Run a cell in a context, or a program of a language that has none."""
        if language is not None and language.context is None:
            self._box(run.tools, language)
            return await self._run_file(run, language)
        async with self._contexts.turn(context, language) as (name, spoken):
            await self._live.enter()  # it may have been hibernated meanwhile
            work = self._cell(name, run, self._box(run.tools, spoken))
            try:
                try:
                    is_new = await self._contexts.ensure(name)
                    is_new = self._contexts.is_told_of_successor(name) or is_new
                    execution = await self._attempt(work, spoken.name, run)
                except GuestRefused as refusal:
                    if refusal.reason != "no_context":
                        raise
                    # The context's process ended unnoticed between two cells; nothing has run.
                    await self._contexts.restart(name)
                    is_new = True
                    execution = await self._attempt(work, spoken.name, run)
            except GuestRefused as refusal:
                raise Conflict(
                    f"context {name!r}: {refusal}", remedy="run again, or restart it"
                ) from None
        if is_new:
            note = f"context {name!r} had ended; this ran in a new one, without its state"
            outcome = replace(execution.outcome, notes=(*execution.outcome.notes, note))
            return replace(execution, outcome=outcome)
        return execution

    def _box(self, tools: Tools | None, language: Language) -> Offer | None:
        """Return the tools that a run in that language may call."""
        if tools is not None:
            return check_tools(tools, language)
        return self._tools if may_call(language) else None

    def _cell(self, context: str, run: Run, tools: Offer | None) -> Work:
        fields = {
            "context": inside(context),
            "mode": "cell",
            "filename": "<cell>",
            "arguments": None,
            "argv": (),
            "stdin": "none" if run.stdin is None else "stream",
            "output_bytes": run.limits.output_bytes,
            "display": True,
            "tools": None if tools is None else tools.manifest,
        }

        def stop(_number: int) -> None:
            self._live.channel.tell("interrupt", context=inside(context))

        return Work(
            "execute",
            fields,
            run.limits,
            run.source,
            run.stdin,
            stop=stop,
            is_asked=True,
            tools=tools,
        )

    async def _attempt(self, work: Work, language: str, run: Run) -> Execution:
        started_at = time.time()
        is_cell = work.fields.get("mode") == "cell"
        context = str(work.fields.get("context"))
        birth = self._contexts.birth(context) if is_cell else None
        with self._live.speaking():
            attempt = Attempt(self._live, work, run.on_event)
        attempt.hand_out(run.on_start)
        outcome = await attempt.wait()
        if self._live.network is not None:
            outcome = await self._live.network.added_to(outcome)
        if is_cell and not attempt.is_context_alive:
            self._contexts.mark_ended(context, birth)
        run.after(outcome)
        return finish(attempt, outcome, language, started_at)

    async def _run_file(self, run: Run, language: Language) -> Execution:
        program = SessionProgram.of(self._live, language, run.source.decode(), run.limits)
        await self._files.write(program.path, run.source)
        try:
            stages = Stages(run.on_start)
            if language.compile:
                await self._files.mkdir(program.build)
                ended = await program.compile(run.on_event, stages)
                if ended is not None:
                    run.after(ended.outcome)
                    return ended
            run = replace(run, on_start=stages.begin)
            return await self._attempt(program.work(run.stdin), language.name, run)
        except GuestRefused as refusal:
            if refusal.reason == "not_found":
                raise UsageError(
                    f"run {language.name}: {refusal}", remedy=f"install it: {language.install}"
                ) from None
            raise file_error(refusal, f"run {language.name}") from None
        finally:
            # Keep the outcome even if the program has closed or removed its own directory.
            if self._live.is_alive:
                with contextlib.suppress(CellwallError):
                    await self._files.remove(program.directory, recursive=True)
