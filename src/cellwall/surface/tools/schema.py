"""Check whether the arguments of a call fit its tool.

The check comes from a function's type hints (pydantic) or from a JSON schema (jsonschema). Both
libraries are imported when the first tool is made; they come with `cellwall[tools]`. Arguments are
hostile: types are strict, unknown names are refused, depth is bounded, and nothing to which a
schema refers is fetched.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple, get_type_hints

from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.model.nesting import is_nested

_MOST_DEPTH = 64
_MOST_COMPLAINTS = 5
_MOST_WORDS = 300

Arguments = dict[str, Any]


class InvalidArguments(ValueError):
    """Arguments do not fit; the message says which and why, for the author of the call."""


class Check(NamedTuple):
    """How the arguments of one tool are checked."""

    schema: Mapping[str, Any]
    """JSON schema of the arguments, as it is shown to a model or a person."""
    read: Callable[[Arguments], Arguments]
    """Returns the function's arguments, as its hints want them; raises `InvalidArguments`."""


def check_of(name: str, function: Callable[..., Any], schema: Mapping[str, Any] | None) -> Check:
    """Return the check of one tool. Raises `UsageError`, `HostUnsupported`."""
    return _from_hints(name, function) if schema is None else _from_schema(name, schema)


def check_depth(arguments: object) -> None:
    """Raise `InvalidArguments` for JSON nested deeper than any sensible call."""
    if is_nested(arguments, _MOST_DEPTH):
        raise InvalidArguments(f"nested deeper than {_MOST_DEPTH} levels")


def _from_hints(name: str, function: Callable[..., Any]) -> Check:
    pydantic = _library("pydantic")
    fields, defaults = _fields(name, function)
    typing_extensions = import_module("typing_extensions")
    optional, needed = typing_extensions.NotRequired, typing_extensions.Required
    shape = typing_extensions.TypedDict(
        name,
        {each: (optional if each in defaults else needed)[hint] for each, hint in fields.items()},
    )
    shape.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )
    try:
        adapter = pydantic.TypeAdapter(shape)
        schema = adapter.json_schema()
    except (pydantic.PydanticUserError, TypeError, NameError) as error:
        raise _no_schema(name, str(error).split("\n", 1)[0]) from None
    for each, default in defaults.items():
        _note_default(schema["properties"][each], default)

    def read(arguments: Arguments) -> Arguments:
        try:
            found: Arguments = adapter.validate_json(json.dumps(arguments))
        except pydantic.ValidationError as error:
            raise InvalidArguments(_complaints(error)) from None
        return found

    return Check(schema, read)


def _fields(name: str, function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the type of each parameter, and the defaults of those that have one."""
    try:
        parameters = inspect.signature(function).parameters
        called = function if inspect.isroutine(function) else type(function).__call__
        hints = get_type_hints(called, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise _no_schema(name, str(error)) from None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for each in parameters.values():
        if each.kind not in by_name:
            raise _no_schema(name, f"parameter {str(each)!r} cannot be given by name")
    fields = {each: hints.get(each, Any) for each in parameters}
    defaults = {
        each.name: each.default
        for each in parameters.values()
        if each.default is not inspect.Parameter.empty
    }
    return fields, defaults


def _note_default(described: dict[str, Any], default: object) -> None:
    try:
        json.dumps(default, allow_nan=False)
    except (TypeError, ValueError):
        return
    described["default"] = default


def _complaints(error: Any) -> str:  # noqa: ANN401 - pydantic's, imported late
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(str(step) for step in each['loc']) or 'arguments'}: {each['msg']}"
        for each in found[:_MOST_COMPLAINTS]
    ]
    return "; ".join(shown)[:_MOST_WORDS]


def _from_schema(name: str, schema: Mapping[str, Any]) -> Check:
    jsonschema, referencing = _library("jsonschema"), _library("referencing")
    wanted = dict(schema)
    if wanted.get("type", "object") != "object":
        raise _no_schema(name, "its type is not `object`")
    wanted.setdefault("type", "object")
    wanted.setdefault("additionalProperties", False)
    kind = jsonschema.validators.validator_for(wanted, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(wanted)
    except jsonschema.SchemaError as error:
        raise _no_schema(name, error.message[:_MOST_WORDS]) from None
    away = next((each for each in _references(wanted) if not each.startswith("#")), None)
    if away is not None:
        raise _no_schema(name, f"it refers to {away}, and nothing is fetched")
    # SECURITY: an empty registry; the library's own would fetch what a `$ref` names.
    validator = kind(wanted, registry=referencing.Registry())

    def read(arguments: Arguments) -> Arguments:
        try:
            error = next(validator.iter_errors(arguments), None)
        except RecursionError:
            raise InvalidArguments("nested too deeply") from None
        if error is not None:
            where = ".".join(str(step) for step in error.absolute_path) or "arguments"
            raise InvalidArguments(f"{where}: {error.message}"[:_MOST_WORDS])
        return arguments

    return Check(wanted, read)


def _references(schema: object) -> Iterator[str]:
    """Yield every `$ref`, and every value that only looks like one."""
    if isinstance(schema, Mapping):
        for word, value in schema.items():
            if word in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            yield from _references(value)
    elif isinstance(schema, (list, tuple)):
        for each in schema:
            yield from _references(each)


def _no_schema(name: str, why: str) -> UsageError:
    return UsageError(
        f"tool {name!r}: no schema of its arguments: {why}",
        remedy="annotate its parameters with types that JSON has, or give Tool(…, schema=…)",
    )


def _library(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return import_module(name)
    except ImportError:
        raise HostUnsupported(
            name, f"tools: {name} is not installed", remedy="pip install 'cellwall[tools]'"
        ) from None
