"""Texts for models: the one wording of an execution, a command or an error for a language model.

Used by `Execution.for_model`, the MCP server and the integrations. An answer holds, in this order:
stdout, stderr, the displays (tables as Markdown, images described), the value, the traceback,
files, and for any other end than a good one what happened, which limit was reached and what to try
next. Text of the program is copied and cut, never interpreted; the text on the verdict comes from
the outcome alone, and stands last, where a program cannot write after it.
"""

from __future__ import annotations

import base64
import binascii
import json
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cellwall.model import advice
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    NodeLost,
    NodeUnreachable,
    UsageError,
)
from cellwall.model.excerpts import cut_middle, plain, shares
from cellwall.model.execution import DEFAULT_BUDGET_CHARS
from cellwall.model.outcome import Verdict
from cellwall.model.readable import chart_of, is_opaque, text_of

if TYPE_CHECKING:
    from cellwall.model.execution import CommandResult, Execution, ExecutionError
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Outcome

LEAST_BUDGET_CHARS = 2_000
"""Minimum budget in characters: below it there is no room for what happened, both ends of the
output and a traceback."""
_MOST_NOTE_CHARS = 500
_MOST_CAPTION_CHARS = 200
_MOST_FILES_NAMED = 20

NOTHING_SHOWN = "(It ended well and showed nothing. Print what you want to see.)"

_IMAGES = ("image/png", "image/jpeg", "image/svg+xml", "image/gif", "image/webp")


def execution_for_model(
    execution: Execution,
    budget_chars: int = DEFAULT_BUDGET_CHARS,
    kept_in: Mapping[str, str] | None = None,
) -> str:
    """Return the text on `execution` for a model in at most `budget_chars` characters.

    `kept_in` names the file inside that holds all of `stdout`, `stderr` or `shown`, if there is one
    (`surface.shared.kept_output`). `UsageError` for a budget below `LEAST_BUDGET_CHARS`.
    """
    end = _end(execution.outcome, execution.limits, execution.error)
    return _fitted(_sections(execution), end, check_budget(budget_chars), kept_in or {})


def command_for_model(
    result: CommandResult,
    limits: Limits | None = None,
    budget_chars: int = DEFAULT_BUDGET_CHARS,
    kept_in: Mapping[str, str] | None = None,
) -> str:
    """Return the text on an ended command for a model."""
    sections = {"stdout": plain(result.stdout), "stderr": plain(result.stderr)}
    end = _end(result.outcome, limits, None)
    return _fitted(sections, end, check_budget(budget_chars), kept_in or {})


def error_for_model(error: BaseException) -> str:
    """Return the text for a model on a call that was not carried out.

    The text of an exception that cellwall did not raise on purpose is not repeated: it may hold
    paths or other users' data.
    """
    if not isinstance(error, CellwallError):
        return (
            "Not done: an unexpected failure of cellwall. Next: try once more, then tell the user."
        )
    said = f"{'Lost' if isinstance(error, NodeLost) else 'Not done'}: {_sentence(error.message)}"
    said += whose_fault(error)
    if error.remedy:
        said += f" Next: {_sentence(error.remedy)}"
    if isinstance(error, CapacityError):
        said += f" There may be room again in {error.retry_after_s:.0f} s."
    if isinstance(error, NodeUnreachable):
        said += f" It may answer again in {error.retry_after_s:.0f} s."
    if error.request_id:
        said += f" (request {error.request_id})"
    return said


def whose_fault(error: CellwallError) -> str:
    """Return, behind a space, that a machine and not the program was the reason, if one was."""
    if isinstance(error, NodeLost):
        return f" {advice.NODE_LOST}"
    return f" {advice.NODE_UNREACHABLE}" if isinstance(error, NodeUnreachable) else ""


def _sentence(text: str) -> str:
    said = plain(text).strip()
    return said if said.endswith((".", "?", "!")) else f"{said}."


def check_budget(budget_chars: int) -> int:
    """Return `budget_chars`; `UsageError` if it is not a number or too small."""
    if isinstance(budget_chars, bool) or not isinstance(budget_chars, int):
        raise UsageError("budget_chars: not a whole number", remedy="give a number of characters")
    if budget_chars < LEAST_BUDGET_CHARS:
        raise UsageError(
            f"budget_chars: {budget_chars} is too small",
            remedy=f"give at least {LEAST_BUDGET_CHARS}",
        )
    return budget_chars


def left_out(execution: Execution, budget_chars: int = DEFAULT_BUDGET_CHARS) -> dict[str, str]:
    """Return the whole of each part that `execution_for_model` cuts, by its name."""
    sections = {name: text for name, text in _sections(execution).items() if text}
    end = _end(execution.outcome, execution.limits, execution.error)
    return _cut_parts(sections, check_budget(budget_chars) - _room_for(sections, end))


def command_left_out(
    result: CommandResult, budget_chars: int = DEFAULT_BUDGET_CHARS
) -> dict[str, str]:
    """Return the whole of each stream that `command_for_model` cuts, by its name."""
    streams = {"stdout": plain(result.stdout), "stderr": plain(result.stderr)}
    sections = {name: text for name, text in streams.items() if text}
    end = _end(result.outcome, None, None)
    return _cut_parts(sections, check_budget(budget_chars) - _room_for(sections, end))


def _cut_parts(sections: Mapping[str, str], room: int) -> dict[str, str]:
    given = shares({name: len(text) for name, text in sections.items()}, room)
    return {name: text for name, text in sections.items() if given[name] < len(text)}


# -- parts ---------------------------------------------------------------------------------------


def _sections(execution: Execution) -> dict[str, str]:
    return {
        "stdout": plain(execution.stdout).strip("\n"),
        "stderr": _without_traceback(execution),
        "shown": shown_for_model(execution.results),
        "value": "" if execution.result is None else _json(execution.result),
        _named(execution): _traceback(execution.error),
        "files": _files(execution.files),
    }


def _named(execution: Execution) -> str:
    is_compilers = execution.outcome.verdict is Verdict.COMPILE_ERROR
    return "compiler" if is_compilers else "traceback"


def _without_traceback(execution: Execution) -> str:
    """Return stderr without the traceback of an uncaught exception, which is printed there, too."""
    text = plain(execution.stderr).strip("\n")
    trace = _traceback(execution.error)
    return text.removesuffix(trace).rstrip("\n") if trace else text


def _traceback(error: ExecutionError | None) -> str:
    if error is None:
        return ""
    return plain(error.traceback).strip("\n") or plain(f"{error.name}: {error.value}")


def _files(files: Mapping[str, bytes]) -> str:
    names = [f"{plain(name)} ({_size(len(data))})" for name, data in files.items()]
    more = len(names) - _MOST_FILES_NAMED
    return "\n".join(names[:_MOST_FILES_NAMED] + ([f"and {more} more"] if more > 0 else []))


def shown_for_model(results: Iterable[Mapping[str, Any]]) -> str:
    """Return displays as text: tables as Markdown; images and charts described and numbered."""
    said: list[str] = []
    images = charts = 0
    for bundle in results:
        image = next((mime for mime in _IMAGES if mime in bundle), None)
        chart = chart_of(bundle)
        if image is not None:
            images += 1
            said.append(_image(images, image, bundle))
        elif chart is not None:
            charts += 1
            said.append(_chart(charts, *chart, bundle))
        else:
            said.append(bundle_for_model(bundle))
    return "\n\n".join(filter(None, said))


def bundle_for_model(bundle: Mapping[str, Any]) -> str:
    """Return the form of one MIME bundle that a model reads best."""
    text = text_of(bundle)
    if text is not None:
        return plain(text).strip("\n")
    return f"[{', '.join(plain(str(mime)) for mime in bundle)}]"


def _chart(number: int, mime: str, library: str, bundle: Mapping[str, Any]) -> str:
    facts = f"{library}, {_size(len(str(bundle[mime])))}"
    return f"[chart {number}: {facts}{_caption(bundle)}]"


def _image(number: int, mime: str, bundle: Mapping[str, Any]) -> str:
    data = str(bundle[mime])
    is_text = mime.endswith("+xml")
    size = len(data) if is_text else len(data) * 3 // 4
    facts = [mime.removeprefix("image/").removesuffix("+xml").upper(), _size(size)]
    if mime == "image/png" and (pixels := _pixels(data)):
        facts.insert(1, pixels)
    return f"[image {number}: {', '.join(facts)}{_caption(bundle)}]"


def _caption(bundle: Mapping[str, Any]) -> str:
    said = bundle.get("text/plain", "")
    described = "" if is_opaque(said) else plain(str(said)).strip()[:_MOST_CAPTION_CHARS]
    return f"; {described}" if described else ""


def _pixels(data: str) -> str | None:
    """Return width and height from a PNG's first chunk."""
    try:
        head = base64.b64decode(data[:32])
    except (binascii.Error, ValueError):
        return None
    if len(head) < 24 or head[12:16] != b"IHDR":
        return None
    width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    return f"{width}x{height} pixels"


def _json(value: object) -> str:
    try:
        return plain(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return plain(repr(value))


def _size(number_bytes: int) -> str:
    if number_bytes < 1024:
        return f"{number_bytes} bytes"
    if number_bytes < 1024 * 1024:
        return f"{number_bytes / 1024:.1f} KiB"
    return f"{number_bytes / 1024 / 1024:.1f} MiB"


# -- how it ended ----------------------------------------------------------------------------------


def _end(outcome: Outcome, limits: Limits | None, error: ExecutionError | None) -> str:
    """Return what happened, which limit and what to try; "" for a good end without notes."""
    notes = plain("; ".join(outcome.notes))[:_MOST_NOTE_CHARS]
    if outcome.verdict is Verdict.OK:
        return f"[note: {notes}]" if notes else ""
    happened = notes or _happened(outcome, error)
    said = [f"[{outcome.verdict.value}] {happened.rstrip('.')}."]
    met = advice.limits_met(outcome.verdict, limits)
    if met:
        said.append(f"Limit: {met}.")
    said.append(f"Used: {_usage(outcome)}.")
    said.append(f"Next: {advice.next_step(outcome.verdict, error, limits)}")
    return " ".join(said)


def _happened(outcome: Outcome, error: ExecutionError | None) -> str:
    texts: dict[Verdict, Callable[[], str]] = {
        Verdict.EXCEPTION: lambda: f"it raised {plain(error.name)[:100] if error else 'an error'}",
        Verdict.NONZERO_EXIT: lambda: f"it ended with exit status {outcome.exit_code}",
        Verdict.SIGNALLED: lambda: f"it was ended by {_signal(outcome.signal)}",
    }
    made = texts.get(outcome.verdict)
    return made() if made else advice.HAPPENED[outcome.verdict]


def _signal(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _usage(outcome: Outcome) -> str:
    usage = outcome.usage
    return (
        f"{usage.wall_s:.2f} s, {usage.cpu_s:.2f} s of CPU, "
        f"{usage.memory_peak_bytes / 1024 / 1024:.0f} MiB at most"
    )


# -- the whole -------------------------------------------------------------------------------------

_TITLES = {
    "stderr": "stderr:\n",
    "value": "Value:\n",
    "compiler": "The compiler said:\n",
    "traceback": "Traceback:\n",
    "files": "Files:\n",
}


def _room_for(sections: Mapping[str, str], end: str) -> int:
    """Return the number of characters of an answer that are not the sections' own text."""
    titles = sum(len(_TITLES.get(name, "")) for name, text in sections.items() if text)
    return titles + 2 * (len(sections) + 1) + len(end)


def _fitted(sections: Mapping[str, str], end: str, budget: int, kept_in: Mapping[str, str]) -> str:
    sections = {name: text for name, text in sections.items() if text}
    end = end[: budget // 2]
    given = shares(
        {name: len(text) for name, text in sections.items()}, budget - _room_for(sections, end)
    )
    parts = [
        _TITLES.get(name, "") + cut_middle(text, given[name], kept_in.get(name))
        for name, text in sections.items()
    ]
    return "\n\n".join([*parts, *([end] if end else [])]) or NOTHING_SHOWN
