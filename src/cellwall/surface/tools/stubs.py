"""The first line of a tool as the inside sees it: `(query: str, limit: int = 5) -> list[str]`.

This module is pure. The line is compiled inside, so it must be Python 3.8 without any effect of its
own: annotations are texts there, and defaults are literals, or `...` for values without a literal.
An argument that is `...` is not sent.
"""

from __future__ import annotations

import ast
import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any

ANY_ARGUMENTS = "(**arguments)"
_JSON_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
_LITERALS = (str, int, float, bool, type(None))
_MOST_CHARACTERS = 4096


def head_of(function: Callable[..., Any], schema: Mapping[str, Any]) -> str:
    """Return the parameters, and the function's return type if it is annotated."""
    properties = schema.get("properties", {})
    names = list(properties)
    if not _is_closed(schema) or not all(_is_parameter(name) for name in names):
        return ANY_ARGUMENTS
    needed = set(schema.get("required", ()))
    hints, returned = _hints(function)
    parts = []
    for name in sorted(names, key=lambda name: name not in needed):  # stable: in their order
        described = properties[name] if isinstance(properties[name], Mapping) else {}
        hint = hints.get(name) or _JSON_TYPES.get(str(described.get("type")), "")
        part = f"{name}: {hint}" if hint else name
        if name not in needed:
            part += f" = {_literal(described)}" if hint else f"={_literal(described)}"
        parts.append(part)
    head = f"({', '.join(parts)})" + (f" -> {returned}" if returned else "")
    return head if _is_python(head) else ANY_ARGUMENTS


def _is_closed(schema: Mapping[str, Any]) -> bool:
    open_ended = ("patternProperties", "$ref", "allOf", "anyOf", "oneOf")
    return schema.get("additionalProperties") is False and not any(
        word in schema for word in open_ended
    )


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")


def _hints(function: Callable[..., Any]) -> tuple[dict[str, str], str]:
    """Return annotations as text, where a text can express them."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}, ""
    texts = {name: _text(each.annotation) for name, each in signature.parameters.items()}
    return texts, _text(signature.return_annotation)


def _text(annotation: object) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return ""
    # Only the caller needs to know in which module its class lives.
    return text.rpartition(".")[2] if text.replace(".", "").isidentifier() else text


def _literal(described: Mapping[str, Any]) -> str:
    if "default" not in described:
        return "..."
    default = described["default"]
    return repr(default) if isinstance(default, _LITERALS) else "..."


def _is_python(head: str) -> bool:
    if len(head) > _MOST_CHARACTERS:
        return False
    try:
        ast.parse(f"def tool{head}: ...", feature_version=(3, 8))
    except (SyntaxError, ValueError):
        return False
    return True
