"""Answers: the results of tools; text for the model, facts for programs, images and files.

The wording is in `model.for_model`; the results made here fit the schemas of `schemas`.
"""

from __future__ import annotations

import base64
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from cellwall.apps.mcp.tools.addresses import media_type
from cellwall.model.errors import CellwallError
from cellwall.model.excerpts import cut_middle, plain, shares
from cellwall.model.for_model import error_for_model
from cellwall.model.limits import Limits
from cellwall.model.outcome import Verdict
from cellwall.model.tables import as_markdown
from cellwall.wire.answer import finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_types import ContentBlock

    from cellwall.model.execution import CommandResult, Execution
    from cellwall.model.outcome import Outcome

SHOWN_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Image types that clients can display; an SVG is only described."""
_GOOD = frozenset({Verdict.OK, Verdict.OUTPUT})
_TEXTS = ("text", "stdout", "stderr")
_NAME_CHARS = 200
_LIMITS = tuple(each.name for each in fields(Limits))


def answer(
    text: str, facts: Mapping[str, Any], *more: ContentBlock, meta: Mapping[str, Any] | None = None
) -> CallToolResult:
    """Return a successful result; `meta` is for programs and not shown to models."""
    return CallToolResult(
        content=[TextContent(text=text), *more],
        structured_content=finite(dict(facts)),
        _meta=_named(meta or {}) or None,
    )


def execution(
    result: Execution, budget_chars: int, kept_in: Mapping[str, str] | None = None
) -> CallToolResult:
    """Return the result of a program."""
    error = result.error
    facts = _ended(result, result.for_model(budget_chars, kept_in), budget_chars, kept_in)
    room = budget_chars - sum(len(str(facts[name])) for name in _TEXTS)
    if error is not None:
        facts["error"] = {"name": error.name[:_NAME_CHARS], "value": error.value[:room]}
        room -= len(facts["error"]["value"])
    facts["images"] = len(images := _images(result))
    more = {
        "result": result.result,
        "tables": _tables(result),
        "files": [{"path": path, "size": len(data)} for path, data in result.files.items()],
    }
    for name, value in finite(more).items():
        if value not in (None, []) and (size := len(repr(value))) <= room:
            facts[name] = value
            room -= size
    return CallToolResult(
        content=[TextContent(text=facts["text"]), *images, *_files(result)],
        structured_content=facts,
        is_error=result.verdict not in _GOOD,
        _meta=_named(
            {
                "execution": {
                    "id": result.id,
                    "language": result.language,
                    "template": result.template,
                },
                **_about(result.outcome),
            }
        ),
    )


def command(result: CommandResult, budget_chars: int, kept_in: Mapping[str, str]) -> CallToolResult:
    """Return the result of a command."""
    facts = _ended(result, result.for_model(budget_chars, kept_in), budget_chars, kept_in)
    return CallToolResult(
        content=[TextContent(text=facts["text"])],
        structured_content=facts,
        is_error=result.outcome.verdict not in _GOOD,
        _meta=_named(_about(result.outcome)),
    )


def failure(error: Exception) -> CallToolResult:
    """Return the reason why a call was not carried out, with the remedy."""
    facts = {
        "code": error.code if isinstance(error, CellwallError) else "internal",
        "message": error.message if isinstance(error, CellwallError) else "an unexpected failure",
        "remedy": error.remedy if isinstance(error, CellwallError) else None,
    }
    text = error_for_model(error)
    return CallToolResult(
        content=[TextContent(text=text)],
        structured_content={"text": text, "failure": facts},
        is_error=True,
    )


def limits(found: Limits) -> dict[str, Any]:
    """Return limits as facts."""
    return {name: getattr(found, name) for name in _LIMITS}


def _ended(
    result: Execution | CommandResult,
    text: str,
    budget_chars: int,
    kept_in: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the facts of an end: the full summary in `text`, then the others as far as they fit.

    All of it has one budget, because some clients show a model these facts and nothing else.
    """
    outcome = result.outcome
    streams = {"stdout": plain(result.stdout), "stderr": _stderr(result)}
    sizes = {name: len(said) for name, said in streams.items()}
    given = shares(sizes, budget_chars - len(text))
    facts: dict[str, Any] = {
        "text": text,
        "verdict": outcome.verdict.value,
        "ok": outcome.verdict is Verdict.OK,
        "exit_code": outcome.exit_code,
        **{name: cut_middle(said, given[name]) for name, said in streams.items()},
    }
    if outcome.signal is not None:
        facts["signal"] = outcome.signal
    if kept_in:
        facts["left_out"] = dict(kept_in)
    if outcome.truncated:
        facts["truncated"] = outcome.as_json()["truncated"]
    return facts


def _stderr(result: Execution | CommandResult) -> str:
    """Return stderr without the traceback of an uncaught exception, which `text` contains."""
    said = plain(result.stderr)
    error = getattr(result, "error", None)
    trace = "" if error is None else plain(error.traceback).strip("\n")
    return said.rstrip("\n").removesuffix(trace) if trace else said


def _about(outcome: Outcome) -> dict[str, Any]:
    ended = outcome.as_json()
    return {name: ended[name] for name in ("exit_status", "usage", "isolation", "notes")}


def _named(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts under names that the protocol reserves for servers."""
    return {f"cellwall/{name}": value for name, value in facts.items()}


def _images(result: Execution) -> list[ImageContent]:
    found = []
    for bundle in result.results:
        mime = next((each for each in SHOWN_IMAGES if each in bundle), None)
        if mime is not None and _is_base64(data := str(bundle[mime])):
            found.append(ImageContent(data=data, mime_type=mime))
    return found


def _is_base64(data: str) -> bool:
    """Report whether data is valid base64.

    A program may label anything as an image; data that cannot be decoded would break a client.
    """
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        return False
    return bool(data)


def _tables(result: Execution) -> list[str]:
    found = (as_markdown(str(bundle.get("text/html", ""))) for bundle in result.results)
    return [plain(table) for table in found if table is not None]


def _files(result: Execution) -> list[EmbeddedResource]:
    return [
        EmbeddedResource(
            resource=BlobResourceContents(
                uri=f"cellwall://execution/{result.id}/files/{path}",
                mime_type=media_type(path),
                blob=base64.b64encode(data).decode("ascii"),
            )
        )
        for path, data in result.files.items()
    ]
