"""One program in one fresh sandbox, as `cellwall run` wants it.

Not the options of the command (`run` declares them, `run_words` reads the usual ones). The
invariants: our stdout carries the program's stdout and nothing else, or with `--json` exactly one
line, and everything of ours goes to stderr; and nothing here imports the package that parses
command lines, which takes longer than the program.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.apps.cli.console.built_template import built
from cellwall.apps.cli.console.exit_status import exit_status, explanation, lost
from cellwall.apps.cli.console.shown import Shown
from cellwall.apps.cli.console.terminal import Streams, complain
from cellwall.model.errors import CellwallError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cellwall.model.execution import Event, Execution
    from cellwall.model.secret import Secret
    from cellwall.runtimes.base import AheadOfEngine


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
    head_start: AheadOfEngine | None = None
    """What was started for it before the engine is imported."""


def run_program(given: Mapping[str, Any], begun: AheadOfEngine | None = None) -> int:
    """Run the program that `given`, an option each, describes; return our exit status.

    `begun`: what was started for it before.
    """
    try:
        if given["image"] or given["user"] or given["profile"]:
            return _run_in_image(given)
        request = _read(given)
        template = built(request.options["template"])
        if begun is not None:
            begun.go_on(template)
            request.head_start = begun
        return _run_json(request) if given["as_json"] else _run_streaming(request)
    except CellwallError as error:
        if given["as_json"]:
            from cellwall.wire.answer import error_envelope, one_line

            _show(one_line(error_envelope(error, "")))
        raise


def _run_in_image(given: Mapping[str, Any]) -> int:
    from cellwall.apps.cli.image_command import run_command

    if not given["image"]:
        option = "--user is one of an image" if given["user"] else "--profile needs an image"
        raise UsageError(f"run: {option}", remedy="name it with --image, too")
    built("python")
    return run_command(given, _limits(given))


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    limits = {
        "cpus": given["cpu"],
        "memory_mb": given["memory"],
        "processes": given["pids"],
        **_pairs(given["limit"], "--limit"),
    }
    return {name: value for name, value in limits.items() if value is not None}


def _read(given: Mapping[str, Any]) -> Request:
    file = given["file"]
    words = [file, *(given["args"] or [])] if file else []
    request = _request(words, given["code"], given["language"])
    if given["artifacts"] is not None or given["into"] is not None:
        from cellwall.apps.cli.console.artifacts import place_of

        request.place = place_of(given["artifacts"], given["into"])
    request.options.update(given_inside(given))
    network, secrets = network_and_secrets_of(
        given["allow"], given["deny"], given["network"], given["secret"]
    )
    if secrets:
        request.options["secrets"] = secrets
    request.options.update(
        template=given["template"] or _template_of(request.language),
        stdin=_stdin(given["stdin"]),
        arguments=_pairs(given["arg"], "--arg") or None,
        artifacts=given["artifacts"],
        timeout=given["timeout"],
        limits=_limits(given),
        isolation=given["isolation"],
        trust=given["trust"],
        runtime=given["runtime"],
        demand_hard=given["demand_hard"],
        start=given["start"],
        compile_options=given["compile_option"] or (),
        compile_limits=_pairs(given["compile_limit"], "--compile-limit") or None,
        network=network,
        packages=given["package"] or (),
        volumes=given["volume"],
    )
    return request


def given_inside(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files and variables that --file and --env give, as `Engine.run` takes them."""
    if not given["files"] and not given["env"]:
        return {}
    from cellwall.apps.cli.words import given_words

    return {
        "files": given_words.files_of_words(given["files"] or ()),
        "env": given_words.variables_of_words(given["env"] or ()),
    }


def network_and_secrets_of(
    allow: list[str] | None, deny: list[str] | None, mode: str | None, secret: list[str] | None
) -> tuple[object, list[Secret]]:
    """Return the policy of these options, and the secrets that --secret gives.

    Their hosts are allowed with them. Raises `UsageError`.
    """
    if not secret:
        return network_of(allow, deny, mode), []
    from cellwall.apps.cli.words.secret_words import allowed_with, secrets_of_words

    secrets = secrets_of_words(secret)
    return network_of(allow if mode else allowed_with(allow, secrets), deny, mode), secrets


def network_of(allow: list[str] | None, deny: list[str] | None, mode: str | None) -> object:
    """Return the policy that --allow, --deny and --network give; None is no network."""
    if deny and not allow and mode != "open":
        raise UsageError(
            "network: --deny is given, and nothing is allowed that it could refuse",
            remedy="give --network open or --allow beside it",
        )
    denied = {"deny": deny} if deny else {}
    if allow and mode == "packages":
        return {"allow": allow, "packages": True, **denied}
    if allow and mode is not None:
        raise UsageError(
            "network: --allow and --network are given",
            remedy="give one of the two, or --network packages",
        )
    if denied:
        return {"allow": allow, **denied} if allow else {"mode": mode, **denied}
    return allow or mode


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
    from cellwall.languages.lookup import find

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
    import asyncio  # once the program's processes start

    reason, status = asyncio.run(_streaming(request))
    if reason is not None:
        complain(reason)
    return status


async def _streaming(request: Request) -> tuple[str | None, int]:
    """Run it; return what is to be said of its end, and our exit status.

    Not the execution: at its end `asyncio.run` makes a text of what it is given, and throws it
    away.
    """
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - inside a coroutine there is one
    streams = Streams(on_broken=lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        try:
            shown = Shown(request.language, streams)
            outcome = (await _execute(request, on_event=shown.feed)).outcome
            return explanation(outcome), exit_status(outcome)
        finally:
            await asyncio.to_thread(streams.close)
    except asyncio.CancelledError:
        streams.check()  # the reader has gone, as in `| head`
        raise


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run_json(request: Request) -> int:
    import asyncio

    from cellwall.wire.answer import answer, one_line

    async def answered() -> tuple[str, int]:  # see `_streaming`
        execution = await _execute(request)
        return one_line(answer(execution)), exit_status(execution.outcome)

    line, status = asyncio.run(answered())
    _show(line)
    return status


async def _execute(request: Request, on_event: Callable[[Event], None] | None = None) -> Execution:
    from cellwall.apps.engines import open_engine

    async with open_engine(answers_first=True, head_start=request.head_start) as engine:
        execution = await engine.run(
            request.code,
            language=request.language,
            args=request.args,
            on_event=on_event,
            **request.options,
        )
    if request.place is not None:
        from cellwall.apps.cli.console.artifacts import save

        count = save(request.place, request.options["artifacts"], execution.files)
        none = "none came back" if lost(execution.outcome) else "there are none"
        complain(f"artifacts: {f'{count} in {request.place}' if count else none}")
    return execution
