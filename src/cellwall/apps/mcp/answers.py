"""What comes back from a tool: text for the model, facts for programs, images and files.

Not the wording (`model.for_model`) and not the schemas (`schemas`), which what is made here fits.
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

from cellwall.apps.mcp.addresses import media_type
from cellwall.model.errors import CellwallError
from cellwall.model.excerpts import cut_middle, plain
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
"""What clients can show; an SVG is described only."""
_GOOD = frozenset({Verdict.OK, Verdict.OUTPUT})
_LIMITS = tuple(each.name for each in fields(Limits))


def answer(text: str, facts: Mapping[str, Any], *more: ContentBlock) -> CallToolResult:
    """Return a good answer."""
    return CallToolResult(
        content=[TextContent(text=text), *more], structured_content=finite(dict(facts))
    )


def execution(
    result: Execution, budget_chars: int, kept_in: Mapping[str, str] | None = None
) -> CallToolResult:
    """Return what a program did."""
    error = result.error
    facts = _ended(result.stdout, result.stderr, result.outcome, budget_chars, kept_in)
    facts |= {
        "execution_id": result.id,
        "language": result.language,
        "template": result.template,
        "result": result.result,
        "error": None
        if error is None
        else {
            "name": error.name,
            "value": error.value[:budget_chars],
            "traceback": cut_middle(plain(error.traceback), budget_chars),
        },
        "images": len(images := _images(result)),
        "tables": _tables(result, budget_chars),
        "files": [{"path": path, "size": len(data)} for path, data in result.files.items()],
    }
    content: list[ContentBlock] = [
        TextContent(text=result.for_model(budget_chars, kept_in)),
        *images,
        *_files(result),
    ]
    return CallToolResult(
        content=content,
        structured_content=finite(facts),
        is_error=result.verdict not in _GOOD,
    )


def command(result: CommandResult, budget_chars: int, kept_in: Mapping[str, str]) -> CallToolResult:
    """Return what a command did."""
    facts = _ended(result.stdout, result.stderr, result.outcome, budget_chars, kept_in)
    return CallToolResult(
        content=[TextContent(text=result.for_model(budget_chars, kept_in))],
        structured_content=facts,
        is_error=result.outcome.verdict not in _GOOD,
    )


def failure(error: Exception) -> CallToolResult:
    """Return why a call was not carried out, and what to do."""
    facts = {
        "code": error.code if isinstance(error, CellwallError) else "internal",
        "message": error.message if isinstance(error, CellwallError) else "an unexpected failure",
        "remedy": error.remedy if isinstance(error, CellwallError) else None,
    }
    return CallToolResult(
        content=[TextContent(text=error_for_model(error))],
        structured_content={"failure": facts},
        is_error=True,
    )


def limits(found: Limits) -> dict[str, Any]:
    """Return limits as facts."""
    return {name: getattr(found, name) for name in _LIMITS}


def _ended(
    stdout: str,
    stderr: str,
    outcome: Outcome,
    budget_chars: int,
    kept_in: Mapping[str, str] | None,
) -> dict[str, Any]:
    ended = outcome.as_json()
    return {
        "verdict": ended["verdict"],
        "ok": outcome.verdict is Verdict.OK,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "stdout": cut_middle(plain(stdout), budget_chars),
        "stderr": cut_middle(plain(stderr), budget_chars),
        "left_out": dict(kept_in or {}),
        "truncated": ended["truncated"],
        "notes": ended["notes"],
        "usage": ended["usage"],
        "isolation": ended["isolation"],
    }


def _images(result: Execution) -> list[ImageContent]:
    found = []
    for bundle in result.results:
        mime = next((each for each in SHOWN_IMAGES if each in bundle), None)
        if mime is not None and _is_base64(data := str(bundle[mime])):
            found.append(ImageContent(data=data, mime_type=mime))
    return found


def _is_base64(data: str) -> bool:
    """A program may call anything an image; what cannot be decoded would break a client."""
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        return False
    return bool(data)


def _tables(result: Execution, budget_chars: int) -> list[str]:
    found = (as_markdown(str(bundle.get("text/html", ""))) for bundle in result.results)
    return [cut_middle(plain(table), budget_chars) for table in found if table is not None]


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
