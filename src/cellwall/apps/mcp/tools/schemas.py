"""Output schemas: the JSON Schemas of each tool's structured content beside its text.

Data only; `answers` makes content that fits. Some clients show a model this and not the text, so it
begins with the text and has one budget; facts for programs only are in `_meta`.
"""

from __future__ import annotations

from typing import Any

from cellwall.model.outcome import Verdict

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:  # noqa: ANN401 - schemas
    return {"type": "object", "properties": properties, "required": required}


def _maybe(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also accepts null; no list of types, which some clients do not know."""
    return {"anyOf": [schema, {"type": "null"}]}


_SAID = {"type": "string", "description": "What the model reads: all of it in few words."}
_ROOM = "As far as there is room beside `text`, without its middle."
_ENDED = {
    "text": _SAID,
    "verdict": {"type": "string", "enum": [verdict.value for verdict in Verdict]},
    "ok": {"type": "boolean"},
    "exit_code": _maybe(_WHOLE),
    "signal": _WHOLE,
    "stdout": {"type": "string", "description": _ROOM},
    "stderr": {"type": "string", "description": f"{_ROOM} The traceback is in `text`."},
    "left_out": {
        "type": "object",
        "description": "Files inside that hold the whole of what was cut, by its name.",
        "additionalProperties": _TEXT,
    },
    "truncated": {
        "type": "object",
        "description": "Bytes that were produced and not kept, by stream.",
    },
}
_ENDED_ALWAYS = ["text", "verdict", "ok", "exit_code", "stdout", "stderr"]
_EXECUTION = _object(
    [*_ENDED_ALWAYS, "images"],
    **_ENDED,
    result={"description": "The value of `result` or of main(), as JSON, if there is room."},
    error=_object(["name", "value"], name=_TEXT, value=_TEXT),
    images={"type": "integer", "description": "How many follow as image content."},
    tables={
        "type": "array",
        "items": _TEXT,
        "description": "As Markdown, if there is room.",
    },
    files={"type": "array", "items": {"type": "object"}},
)
_FILE = _object(["uri", "path", "size"], uri=_TEXT, path=_TEXT, size=_WHOLE)
_LEFT = {
    "type": "array",
    "items": _TEXT,
    "description": "What the sandbox had and the copy has not, such as other processes.",
}
_CARRIES = {
    "type": "string",
    "enum": ["session", "tree"],
    "description": "Whether the Python session and files came along, or every process.",
}
_SNAPSHOT = {
    "id": _TEXT,
    "name": _TEXT,
    "template": _TEXT,
    "created_at": {"type": "number", "description": "Seconds since the epoch."},
    "expires_at": {"type": "number", "description": "Seconds since the epoch."},
    "memory_bytes": _WHOLE,
    "files_bytes": _WHOLE,
    "left_behind": _LEFT,
    "carries": _CARRIES,
}

_GOOD: dict[str, dict[str, Any]] = {
    "run_code": _EXECUTION,
    "create_sandbox": _object(
        ["text", "sandbox_id", "template"],
        text=_SAID,
        sandbox_id=_TEXT,
        template=_TEXT,
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
    "fork_sandbox": _object(
        ["text", "sandbox_ids", "failed"],
        text=_SAID,
        sandbox_ids={"type": "array", "items": _TEXT},
        failed={"type": "integer", "description": "How many copies could not be made."},
        left_behind=_LEFT,
        carries=_CARRIES,
    ),
    "snapshot_sandbox": _object(["text", *_SNAPSHOT], text=_SAID, **_SNAPSHOT),
    "restore_snapshot": _object(
        ["text", "sandbox_id"],
        text=_SAID,
        sandbox_id=_TEXT,
        ends_at={"type": "number", "description": "Seconds since the epoch."},
    ),
    "list_snapshots": _object(
        ["text", "snapshots"],
        text=_SAID,
        snapshots={"type": "array", "items": _object([*_SNAPSHOT], **_SNAPSHOT)},
        older={"type": "integer", "description": "How many older ones are not listed."},
    ),
    "delete_snapshot": _object(["snapshot", "message"], snapshot=_TEXT, message=_TEXT),
}

_FAILURE = _object(["code", "message", "remedy"], code=_TEXT, message=_TEXT, remedy=_maybe(_TEXT))


def _or_failure(good: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"text": _SAID, **good["properties"], "failure": _FAILURE},
        "anyOf": [{"required": good["required"]}, {"required": ["text", "failure"]}],
    }


OUTPUTS = {tool: _or_failure(good) for tool, good in _GOOD.items()}
"""Schemas by tool. A call that was not carried out has a `failure`, explained in `text`."""
