"""What each tool returns beside its text: JSON Schemas of the structured content.

Data only; `answers` makes what fits them. A program reads this, a model reads the text.
"""

from __future__ import annotations

from typing import Any

from cellwall.model.outcome import Verdict

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_WHOLE = {"type": "integer"}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:  # noqa: ANN401 - schemas
    return {"type": "object", "properties": properties, "required": required}


def _maybe(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that null fits, too; a list of types is what clients check fastest."""
    return {**schema, "type": [schema["type"], "null"]}


_ENDED = {
    "verdict": {"type": "string", "enum": [verdict.value for verdict in Verdict]},
    "ok": {"type": "boolean"},
    "exit_code": _maybe(_WHOLE),
    "signal": _maybe(_WHOLE),
    "stdout": {"type": "string", "description": "Without its middle where it is long."},
    "stderr": {"type": "string", "description": "Without its middle where it is long."},
    "left_out": {
        "type": "object",
        "description": "Files inside that hold the whole of what was cut, by its name.",
        "additionalProperties": _TEXT,
    },
    "truncated": {
        "type": "object",
        "description": "Bytes that were produced and not kept, by stream.",
    },
    "notes": {"type": "array", "items": _TEXT},
    "usage": {"type": "object"},
    "isolation": {"type": "object"},
}
_ENDED_ALWAYS = ["verdict", "ok", "exit_code", "stdout", "stderr"]
_EXECUTION = _object(
    [*_ENDED_ALWAYS, "result", "error", "images"],
    **_ENDED,
    execution_id=_TEXT,
    language=_TEXT,
    template=_TEXT,
    result={"description": "The value of `result` or of main(), as JSON."},
    error=_maybe(_object(["name", "value"], name=_TEXT, value=_TEXT, traceback=_TEXT)),
    images={"type": "integer", "description": "How many follow as image content."},
    tables={"type": "array", "items": _TEXT, "description": "Tables as Markdown."},
    files={"type": "array", "items": {"type": "object"}},
)
_FILE = _object(["uri", "path", "size"], uri=_TEXT, path=_TEXT, size=_WHOLE)

_GOOD: dict[str, dict[str, Any]] = {
    "run_code": _EXECUTION,
    "create_sandbox": _object(
        ["sandbox_id", "template", "isolation"],
        sandbox_id=_TEXT,
        template=_TEXT,
        isolation={"type": "object"},
        limits={"type": "object"},
        ends_at={"type": "number", "description": "Seconds since the epoch."},
    ),
    "execute": _EXECUTION,
    "run_command": _object(_ENDED_ALWAYS, **_ENDED),
    "read_file": _object(
        ["uri", "path", "size"],
        uri=_TEXT,
        path=_TEXT,
        size=_WHOLE,
        mime_type=_TEXT,
        lines={"type": "integer", "description": "Lines of a text file."},
        text=_TEXT,
    ),
    "write_file": _FILE,
    "list_files": _object(
        ["path", "entries", "truncated"],
        path=_TEXT,
        entries={"type": "array", "items": {"type": "object"}},
        truncated={"type": "boolean"},
    ),
    "upload": _FILE,
    "download": _FILE,
    "destroy_sandbox": _object(["sandbox_id", "message"], sandbox_id=_TEXT, message=_TEXT),
}

_FAILURE = _object(["code", "message", "remedy"], code=_TEXT, message=_TEXT, remedy=_maybe(_TEXT))


def _or_failure(good: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**good["properties"], "failure": _FAILURE},
        "anyOf": [{"required": good["required"]}, {"required": ["failure"]}],
    }


OUTPUTS = {tool: _or_failure(good) for tool, good in _GOOD.items()}
"""By tool. A call that was not carried out has a `failure` and nothing else."""
