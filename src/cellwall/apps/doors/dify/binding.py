"""Bodies of Dify's sandbox service, bound to fields as its web framework (gin) does.

`application/json` is JSON; any other media type is a form, whose fields may stand in the query,
too. Pure. The invariant: a body that cannot be bound is a `BindingError` in gin's words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from cellwall.apps.doors import exchange
from cellwall.model.errors import UsageError

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 64
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"", "0", "f", "F", "false", "FALSE", "False"})
Fields = Mapping[str, type]
RUN: Fields = {"language": str, "code": str, "preload": str, "enable_network": bool}
DEPENDENCIES: Fields = {"language": str}
_REQUIRED = ("language", "code")


class BindingError(UsageError):
    """The body does not fit; `status` is that of the answer, which differs by media type."""

    def __init__(self, message: str, status: int) -> None:
        """Keep the status."""
        super().__init__(message)
        self.status = status


def bound(fields: Fields, media_type: str, query: str, data: bytes) -> dict[str, Any]:
    """Return the values of `fields`; raises `BindingError`."""
    # gin writes status 400 at once for this media type alone.
    status = 400 if media_type == "application/json" else 200
    kind = media_type.partition(";")[0].strip().lower()
    try:
        found = _of_json(fields, data) if kind == "application/json" else None
        if found is None:
            found = _of_form(fields, query, data if kind == _FORM else b"")
    except ValueError as error:
        raise BindingError(str(error)[:1000], status) from None
    missing = [
        f"Key: '{name.capitalize()}' Error:Field validation for '{name.capitalize()}' failed on "
        "the 'required' tag"
        for name in _REQUIRED
        if name in fields and not found[name]
    ]
    if missing:
        raise BindingError("\n".join(missing), status)
    return found


def _of_json(fields: Fields, data: bytes) -> dict[str, Any]:
    if not data:
        raise ValueError("EOF")
    try:
        body = exchange.decoded(data)
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg} at offset {error.pos}") from None
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise ValueError(f"json: cannot unmarshal {_kind(body)} into Go value of type struct")
    found: dict[str, Any] = {}
    for name, wanted in fields.items():
        value = body.get(name)
        if value is not None and type(value) is not wanted:
            go = "bool" if wanted is bool else "string"
            raise ValueError(
                f"json: cannot unmarshal {_kind(value)} into Go struct field .{name} of type {go}"
            )
        found[name] = wanted() if value is None else value
    return found


def _kind(value: object) -> str:
    kinds = {bool: "bool", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "number")


def _of_form(fields: Fields, query: str, data: bytes) -> dict[str, Any]:
    pairs: list[tuple[str, str]] = []
    for text in (data.decode("utf-8", "replace"), query):
        pairs += parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    given: dict[str, str] = {}
    for name, value in pairs:
        given.setdefault(name, value)
    return {name: _converted(given.get(name, ""), wanted) for name, wanted in fields.items()}


def _converted(text: str, wanted: type) -> str | bool:
    if wanted is str:
        return text
    if text not in _TRUE | _FALSE:
        raise ValueError(f'strconv.ParseBool: parsing "{text[:60]}": invalid syntax')
    return text in _TRUE
