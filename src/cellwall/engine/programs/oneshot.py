"""One-shot: one program in a fresh sandbox; the requests to the guest, and whether it has begun.

Called by `engine`, which claims the sandbox and destroys it. The invariant: `NotBegun` means that
none of the caller's code has run, so that another sandbox may be tried; once a guest that was ready
has accepted code, the end of the sandbox is an outcome, whatever it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.attempt import Attempt, NotBegun, Work
from cellwall.engine.attempts.file_errors import file_error
from cellwall.engine.attempts.verdicts import Cause
from cellwall.languages import callers, mistakes
from cellwall.languages.entries.language import BUILD, CALLER
from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.model.outcome import Outcome, Verdict
from cellwall.runtimes.channel.channel import MOST_SINGLE_BYTES
from cellwall.runtimes.channel.replies import ChannelLost, GuestRefused
from cellwall.runtimes.channel.sealed_files import Content, write_file

if TYPE_CHECKING:
    from cellwall.engine.attempts.attempt import BeforeCode, OnEvent
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.programs.requests import Plan
    from cellwall.languages.entries.language import Language
    from cellwall.runtimes.base import Purpose

_MOST_ENCLOSED_BYTES = 64 * 1024
"""Maximum bytes of stdin that go with the program: what a pipe holds, pipe(7)."""
ARGUMENTS = f"{CALLER}/arguments.json"
UNREAD = "arguments were given, but the program has no function main to give them to"
RESULT = f"{CALLER}/result.json"
_EXECUTABLE = 0o755
_NOT_HANDED = frozenset({"no_context", "busy"})
"""Refusals by a fresh sandbox's guest that could not pass a program to its context: nothing has
run."""
_TEXT_RESULTS = frozenset({"bash"})
"""Languages whose values are text: a returned value is JSON if it parses as such."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Content of one sandbox: first the files, then the work."""

    files: tuple[tuple[str, Content, int | None], ...]
    """Triples of path, content and mode."""
    directories: tuple[str, ...]
    work: Work

    def is_plain(self, most_bytes: int) -> bool:
        """Whether the stage is one small request without files, further input or tools.

        `most_bytes` is what its body may have, and what its header may have.
        """
        work = self.work
        return (
            work.op == "execute"
            and work.stdin is None
            and work.tools is None
            and not self.files
            and not self.directories
            and len(work.body) <= most_bytes
            # JSON needs at most twelve bytes for a character.
            and len(repr(work.fields)) <= most_bytes // 12
        )

    def with_files_enclosed(self) -> Stage:
        """Return the stage with the files in its one request, unless they are too large for that.

        Only a context that is alone writes them, and with the usual mode.
        """
        work = self.work
        room = MOST_SINGLE_BYTES - len(work.body)
        if not self.files or work.op != "execute" or sum(map(_size, self.files)) > room:
            return self
        end = len(work.body) - work.fields.get("stdin_bytes", 0)
        contents = (bytes(data) for _, data, _ in self.files)
        body = b"".join((work.body[:end], *contents, work.body[end:]))
        fields = {**work.fields, "files": [(each[0], _size(each)) for each in self.files]}
        return replace(self, files=(), work=replace(work, fields=fields, body=body))


def _size(file: tuple[str, Content, int | None]) -> int:
    return len(file[1])


async def begin(
    live: ClaimedSandbox, stage: Stage, on_event: OnEvent | None, before_code: BeforeCode | None
) -> Attempt:
    """Write the stage's files and hand the program over. Raises `NotBegun`, `GuestRefused`.

    `before_code` is awaited before the first file is written. If the guest can hold a program, it
    is sent before that and prepared meanwhile.
    """
    try:
        if before_code is not None and _may_be_held(live, stage):
            return await _begin_held(live, stage.work, on_event, before_code)
        if before_code is not None:
            await before_code()
        await _write_files(live, stage)
        return Attempt(live, stage.work, on_event)
    except ChannelLost as error:
        raise NotBegun(error.message) from error


def _may_be_held(live: ClaimedSandbox, stage: Stage) -> bool:
    return stage.is_plain(live.channel.most_held_bytes)


def purpose_of(plan: Plan, stage: Stage) -> Purpose:
    """Return the narrowest purpose of a sandbox that suffices for the program's own stage.

    `stage` has its files enclosed, where that is possible.
    """
    is_single = (
        plan.is_warm
        and plan.language.context == "python"
        and not plan.collect
        and plan.artifacts is None
        and stage.is_plain(MOST_SINGLE_BYTES)
    )
    return "single_program" if is_single else "program"


async def _begin_held(
    live: ClaimedSandbox, work: Work, on_event: OnEvent | None, before_code: BeforeCode
) -> Attempt:
    attempt = Attempt(live, work, on_event, is_held=True)
    try:
        await before_code()
        live.channel.poll()
        if attempt.recorder.cause in (Cause.LOST, Cause.HOSTILE):
            raise NotBegun(attempt.recorder.detail)
    except BaseException:
        attempt.give_up()
        raise
    if not attempt.recorder.is_ended:  # the guest may have refused it, or its owner may have left
        attempt.go()
    return attempt


async def _write_files(live: ClaimedSandbox, stage: Stage) -> None:
    for path in stage.directories:
        await live.channel.request("file_mkdir", path=path, parents=True)
    for path, data, mode in stage.files:
        await write_file(live.channel, data, path=path, append=False, parents=True, mode=mode)


def run_stage(plan: Plan, product: Sequence[tuple[str, Content]] = ()) -> Stage:
    """Return the stage that runs the program; `product` is the output of its compiler."""
    files: list[tuple[str, Content, int | None]] = [(path, data, None) for path, data in plan.files]
    after = partial(_after_run, plan)
    if plan.is_warm:
        fields: dict[str, Any] = {
            "context": "main",
            "mode": "program",
            "filename": plan.file_name,
            "arguments": plan.arguments,
            "argv": plan.args,
            "output_bytes": plan.limits.output_bytes,
            "display": True,
        }
        body, stdin = plan.source, plan.stdin
        if stdin is not None and len(stdin) <= _MOST_ENCLOSED_BYTES:
            fields |= {"stdin": "enclosed", "stdin_bytes": len(stdin)}
            body, stdin = body + stdin, None
        else:
            fields["stdin"] = _stdin_kind(stdin)
        if plan.tools is not None:
            fields["tools"] = plan.tools.manifest
        work = Work("execute", fields, plan.limits, body, stdin, after=after, tools=plan.tools)
        return Stage(tuple(files), (), work)
    language, env = plan.language, dict(plan.language.env)
    written = [*files]
    if language.compile:
        written += [(f"{BUILD}/{name}", data, _EXECUTABLE) for name, data in product]
    else:
        written.append((plan.file_name, plan.source, None))
    if plan.arguments is not None:
        written += _call_files(language, plan.arguments)
        env |= {"CELLWALL_ARGUMENTS": ARGUMENTS, "CELLWALL_RESULT": RESULT}
    fields = {
        "argv": language.command(
            plan.file_name,
            plan.args,
            memory_mb=plan.limits.memory_mb,
            is_call=plan.arguments is not None,
        ),
        "env": env,
        "stdin": _stdin_kind(plan.stdin),
        "pty": None,
        "output_bytes": plan.limits.output_bytes,
    }
    work = Work("start", fields, plan.limits, b"", plan.stdin, after=after)
    return Stage(tuple(written), (), work)


def _stdin_kind(stdin: bytes | None) -> str:
    """Return how a request says whether stdin is sent after it."""
    return "none" if stdin is None else "stream"


def compile_stage(plan: Plan) -> Stage:
    """Return the stage that compiles: sources, no input, nothing of the caller's environment."""
    language, limits = plan.language, plan.compile_limits
    argv = language.compile_command(
        plan.file_name,
        [path for path, _ in plan.files],
        plan.compile_options,
        memory_mb=limits.memory_mb,
    )
    fields = {
        "argv": argv,
        "env": dict(language.env),
        "stdin": "none",
        "pty": None,
        "output_bytes": limits.output_bytes,
    }
    files = tuple((path, data, None) for path, data in (*plan.files, (plan.file_name, plan.source)))
    return Stage(files, (BUILD,), Work("start", fields, limits))


def _call_files(language: Language, arguments: object) -> list[tuple[str, Content, int | None]]:
    found: list[tuple[str, Content, int | None]] = [
        (ARGUMENTS, json.dumps(arguments).encode(), None),
    ]
    if language.caller:
        found.append((f"{CALLER}/{language.caller}", callers.text(language.caller), None))
    return found


async def _after_run(plan: Plan, attempt: Attempt, outcome: Outcome) -> Outcome:
    """Add what the language reports about an error, a call's value, and pictures."""
    recorder, language = attempt.recorder, plan.language
    if plan.arguments is not None and not plan.is_warm and outcome.verdict is Verdict.OK:
        from cellwall.engine.programs import collect  # most programs only print

        value, refused = await collect.result(
            attempt.live, RESULT, may_be_text=language.name in _TEXT_RESULTS
        )
        recorder.returned(value, refused)
    if language.pictures and not plan.is_warm:
        from cellwall.engine.programs import collect

        drawn, notes = await collect.pictures(attempt.live, language.pictures)
        for each in drawn:
            recorder.drew(each)
        outcome = replace(outcome, notes=outcome.notes + notes)
    if plan.arguments and not _reads_arguments(plan):
        outcome = replace(outcome, notes=(*outcome.notes, UNREAD))
    return await described(language, plan.file_name, attempt, outcome)


def _reads_arguments(plan: Plan) -> bool:
    """Report whether the source contains any name by which arguments reach a program."""
    names = "|".join(map(re.escape, plan.arguments or ())) if plan.language.name == "bash" else ""
    ways = f"main|arguments|CELLWALL_ARGUMENTS{names and f'|{names}'}"
    return re.search(rf"\b(?:{ways})\b".encode(), plan.source) is not None


async def described(
    language: Language, file_name: str, attempt: Attempt, outcome: Outcome
) -> Outcome:
    """Add the language's report of an uncaught error; a signal keeps the kernel's verdict."""
    recorder = attempt.recorder
    if recorder.error is not None:
        line = mistakes.line_of(language, file_name, recorder.error.traceback)
        recorder.error = replace(recorder.error, line=line)
        return outcome
    if not _may_be_uncaught(language, outcome):
        return outcome
    error = mistakes.uncaught(language, file_name, recorder.stderr.text)
    if error is None:
        return outcome
    recorder.raised(error)
    if outcome.verdict is Verdict.SIGNALLED:
        return outcome
    return replace(outcome, verdict=Verdict.EXCEPTION)


def _may_be_uncaught(language: Language, outcome: Outcome) -> bool:
    """Report whether the exit status or signal may come from an uncaught error."""
    if outcome.verdict is Verdict.NONZERO_EXIT:
        return not language.error_status or outcome.exit_code in language.error_status
    return outcome.verdict is Verdict.SIGNALLED


def explain(refusal: GuestRefused, work: Plan, *, on_image: bool = False) -> Exception:
    """Return the caller's error for a refusal of the guest; `NotBegun` if nothing has run."""
    if refusal.reason in _NOT_HANDED and work.is_warm:
        return NotBegun(f"it could not be handed over: {refusal}")
    if refusal.reason == "not_found" and on_image:
        return UsageError(
            f"run {work.language.name}: the image cannot: {refusal}",
            remedy="use an image that has what the language needs",
        )
    if refusal.reason == "not_found" and work.language.context != "python":
        return missing(work.language, str(refusal))
    return file_error(refusal, "run")


def missing(language: Language, why: str) -> HostUnsupported:
    """Return the refusal of a language whose tools a sandbox does not have."""
    from cellwall.languages.tools import is_installed  # most programs are in Python

    remedy = f"install it: {language.install}" if language.run else language.install
    if language.run and is_installed(language):
        remedy = f"add {language.name!r} to the languages of the template"
    return HostUnsupported(language.name, f"run {language.name}: {why}", remedy=remedy)
