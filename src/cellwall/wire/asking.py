"""Asking: the bodies of requests, made from the library's arguments.

The mirror of the server's schemas; called by the SDK. It checks only what JSON cannot carry; the
server checks everything else, because it knows its operator's bounds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cellwall.model.errors import UsageError
from cellwall.model.limits import Limits
from cellwall.model.network import NetworkPolicy
from cellwall.model.unicode import utf8

Body = dict[str, Any]


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON; `UsageError` for values that JSON does not have."""
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"arguments: not JSON: {error}", remedy="give plain JSON values") from None


def given(**fields: Any) -> Body:  # noqa: ANN401 - JSON
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def source(code: str) -> Body:
    """Return the program as fields of a body."""
    if not isinstance(code, str):
        raise UsageError(
            f"code: {type(code).__name__} is not text", remedy="give the program as a string"
        )
    if not code.strip():  # the library runs an empty program; tell the server that it is meant
        return {"code": code, "empty_ok": True}
    return {"code": code}


def stdin(data: str | bytes | None) -> Body:
    """Return standard input as fields of a body; absent for None."""
    if data is None:
        return {}
    if not isinstance(data, (str, bytes)):
        raise UsageError(
            f"stdin: {type(data).__name__} is not text", remedy="give a string or bytes"
        )
    if isinstance(data, str):
        try:
            data.encode()
            return {"stdin": data}
        except UnicodeEncodeError:
            data = utf8(data, "stdin", escapes=True)
    return {"stdin_b64": base64.b64encode(data).decode("ascii")}


def limits(value: Limits | Mapping[str, Any] | None) -> Body | None:
    """Return limits as an object; None: the server's own."""
    if value is None:
        return None
    if isinstance(value, Limits):
        return asdict(value)
    if isinstance(value, Mapping):
        Limits().with_changes(dict(value))  # the same refusal as everywhere for invalid limits
        return dict(value)
    raise UsageError(
        f"limits: {type(value).__name__} is not a Limits object",
        remedy="give Limits(...) or a dict of its fields",
    )


def network(value: object) -> Body | None:
    """Return a network policy as an object; None: no network."""
    return None if value is None else NetworkPolicy.of(value).as_json()


def secrets(value: Sequence[str]) -> list[str] | None:
    """Return names of stored secrets; None for none.

    SECURITY: a value is never part of a request that runs something, because those are written
    down.
    """
    if isinstance(value, (str, bytes)) or not all(isinstance(each, str) for each in value):
        raise UsageError(
            "secrets: over HTTP they are given by name",
            remedy="set them with `cellwall secrets set`, or PUT /secrets/NAME, and give names",
        )
    return [*value] or None


def files(value: Mapping[str, str | bytes] | None) -> Body | None:
    """Return input files by name."""
    return None if value is None else {path: _file(path, data) for path, data in value.items()}


def _file(path: str, content: object) -> str | Body:
    if isinstance(path, str):
        utf8(path, f"files: {path!r}")
    if isinstance(content, str):
        utf8(content, f"files: content of {path!r}")
        return content
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise UsageError(
            f"files: content of {path!r} is {type(content).__name__}",
            remedy="give a string or bytes",
        )
    return {"content_b64": base64.b64encode(content).decode("ascii")}


def words(value: Sequence[str], what: str) -> list[str]:
    """Return a list of strings."""
    if isinstance(value, (str, bytes)) or not all(isinstance(word, str) for word in value):
        raise UsageError(f"{what}: not a list of strings without NUL", remedy="give ['a', 'b']")
    for word in value:
        utf8(word, what)  # bytes in surrogate escapes cannot travel as JSON
    return list(value)


def env(value: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return environment variables; the server refuses values that are not text."""
    for name, each in (value or {}).items():
        if isinstance(name, str):
            utf8(name, f"env: the name {name!r}")
        if isinstance(each, str):
            utf8(each, f"env: the value of {name}")
    return None if value is None else dict(value)


def tools(manifest: Mapping[str, Any] | None, *, is_optional: bool = False) -> Body:
    """Return the description of tools for the sandbox as fields of a body; absent for None.

    `is_optional`: in a language that cannot call them, code runs without.
    """
    if manifest is None:
        return {}
    functions = {
        name: {"head": each["head"], "doc": each["doc"], "max_bytes": each["bytes"]}
        for name, each in manifest["functions"].items()
    }
    counts = {"calls": manifest["in_all"], "at_once": manifest["at_once"]}
    if is_optional:
        return {"tools": {"functions": functions, **counts, "optional": True}}
    return {"tools": {"functions": functions, **counts}}


def command(value: str | Sequence[str]) -> Body:
    """Return a command as fields of a body: a text is a line for a shell inside."""
    found: Body = (
        {"command": value} if isinstance(value, str) else {"argv": words(value, "command")}
    )
    if not value:
        raise UsageError("command: it is empty", remedy="name a program")
    if isinstance(value, str):
        utf8(value, "command")
    return found


def volumes(given: object) -> dict[str, str] | None:
    """Return what a request says of volumes; `UsageError` for what is no mapping of texts."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(
        isinstance(word, str) for pair in given.items() for word in pair
    ):
        raise UsageError(
            "volumes: it is no mapping of names to paths", remedy="give {'data': '/data'}"
        )
    return dict(given)
