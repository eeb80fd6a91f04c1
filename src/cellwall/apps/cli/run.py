"""`cellwall run`: one program in one fresh sandbox, as a filter.

Not for sessions (`shell`). Called by `main`. Invariant: our stdout carries the program's stdout
and nothing else, or with `--json` exactly one line; everything of ours goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.apps.cli.console.artifacts import place_of, save
from cellwall.apps.cli.console.exit_status import exit_status, explanation, lost
from cellwall.apps.cli.console.shown import Shown
from cellwall.apps.cli.console.terminal import Streams, complain
from cellwall.apps.cli.templates import built
from cellwall.model.errors import CellwallError, UsageError
from cellwall.wire.answer import answer, error_envelope, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.model.execution import Event, Execution


@dataclass(slots=True)
class Request:
    """What the caller asked for, read and checked."""

    code: str
    language: str
    args: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `Engine.run`."""
    place: Path | None = None
    """Where the program's artifacts go."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", short_help="Run one program in a fresh sandbox.")(run)


def run(  # noqa: PLR0913, PLR0917 - one parameter per option
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The program; `-` reads it from standard input."),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The program's own arguments."),
    ] = None,
    code: Annotated[str | None, typer.Option("-c", help="Run this text instead of a file.")] = None,
    language: Annotated[
        str | None,
        typer.Option(
            "--language", "-l", help="Language; default: the file's extension, or python."
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="What is installed and preloaded; default: python, data for SQL."),
    ] = None,
    stdin: Annotated[
        str | None, typer.Option(metavar="FILE", help="The program's input, `-` for our own.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="An argument for the program; repeatable."),
    ] = None,
    artifacts: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Bring back the files of this folder of the program's."
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY", help="A new directory for --artifacts; default: its name."
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Wall time in seconds.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    cpu: Annotated[float | None, typer.Option(help="Share of CPUs; 1 is one core.")] = None,
    pids: Annotated[int | None, typer.Option(help="Processes and threads.")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Any limit by its own name; repeatable."),
    ] = None,
    compile_option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="An option for the compiler; repeatable."),
    ] = None,
    compile_limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A limit of the compile stage; repeatable."),
    ] = None,
    isolation: Annotated[
        str | None, typer.Option(help="Weakest acceptable level: process, namespace, kernel or vm.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Instead of a level: untrusted, semi or trusted.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(help="A runtime by name instead of the fastest that fits.")
    ] = None,
    demand_hard: Annotated[
        bool,
        typer.Option("--demand-hard", help="Refuse to run where the kernel cannot hold a limit."),
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            metavar="fork|exec", help="Fork a warm interpreter, or exec one that shares nothing."
        ),
    ] = "fork",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Run one program in a fresh sandbox; its exit status becomes ours.

    Ends that are not the program's own: 124 wall time, 137 memory, 128+n signal n, 130
    interrupted, 125 failure of cellwall, 1 any other limit.
    """
    try:
        limits = {"cpus": cpu, "memory_mb": memory, "processes": pids, **_pairs(limit, "--limit")}
        request = _request([file, *(args or [])] if file else [], code, language)
        request.place = place_of(artifacts, into)
        request.options.update(
            template=template or _template_of(request.language),
            stdin=_stdin(stdin),
            arguments=_pairs(arg, "--arg") or None,
            artifacts=artifacts,
            timeout=timeout,
            limits={name: value for name, value in limits.items() if value is not None},
            isolation=isolation,
            trust=trust,
            runtime=runtime,
            demand_hard=demand_hard,
            start=start,
            compile_options=compile_option or (),
            compile_limits=_pairs(compile_limit, "--compile-limit") or None,
        )
        built(request.options["template"])
        status = _run_json(request) if as_json else _run_streaming(request)
    except CellwallError as error:
        if as_json:
            typer.echo(one_line(error_envelope(error, "")))
        raise
    raise typer.Exit(status)


def _request(words: list[str], code: str | None, language: str | None) -> Request:
    if code is not None:
        return Request(code, language or "python", words)
    if not words:
        raise UsageError("run: there is no program", remedy="give a FILE, `-` or -c CODE")
    name, *args = words
    if name == "-":
        return Request(_text("standard input", sys.stdin.buffer.read()), language or "python", args)
    path = Path(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"run: read {name}: {error.strerror}", remedy="give a readable file, `-` or -c CODE"
        ) from error
    return Request(_text(name, data), language or _language_of(path), args)


def _text(name: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"run: read {name}: not UTF-8 text at byte {error.start}",
            remedy="save the program as UTF-8",
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _language_of(path: Path) -> str:
    from cellwall.languages.registry import by_extension

    found = by_extension(path.suffix)
    if found is None:
        raise UsageError(
            f"run: the extension of {path.name} names no language", remedy="give --language"
        )
    return found.name


def _template_of(language: str) -> str:
    from cellwall.languages.registry import find

    return find(language).template


def _stdin(name: str | None) -> bytes | None:
    if name is None:
        return None
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(
            f"run: read --stdin {name}: {error.strerror}", remedy="give a readable file"
        ) from error


def _pairs(given: list[str] | None, option: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for item in given or []:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise UsageError(f"run: {option} {item!r} has no name", remedy=f"{option} NAME=VALUE")
        try:
            pairs[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"run: {option} {name}: {text[:200]!r} is not JSON",
                remedy=f"quote strings, as in {option} '{name}=\"text\"'",
            ) from error
    return pairs


def _run_streaming(request: Request) -> int:
    execution = asyncio.run(_streaming(request))
    reason = explanation(execution.outcome)
    if reason is not None:
        complain(reason)
    return exit_status(execution.outcome)


async def _streaming(request: Request) -> Execution:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - inside a coroutine there is one
    streams = Streams(on_broken=lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        try:
            return await _execute(request, on_event=Shown(request.language, streams).feed)
        finally:
            await asyncio.to_thread(streams.close)
    except asyncio.CancelledError:
        streams.check()  # the reader has gone, as in `| head`
        raise


def _run_json(request: Request) -> int:
    execution = asyncio.run(_execute(request))
    typer.echo(one_line(answer(execution)))
    return exit_status(execution.outcome)


async def _execute(request: Request, on_event: Callable[[Event], None] | None = None) -> Execution:
    from cellwall.apps.engines import open_engine

    async with open_engine() as engine:
        execution = await engine.run(
            request.code,
            language=request.language,
            args=request.args,
            on_event=on_event,
            **request.options,
        )
    if request.place is not None:
        count = save(request.place, request.options["artifacts"], execution.files)
        none = "none came back" if lost(execution.outcome) else "there are none"
        complain(f"artifacts: {f'{count} in {request.place}' if count else none}")
    return execution
