"""JSON form of protobuf messages, by the rules of the protobuf specification.

Unknown fields are skipped, as in the binary form: a newer client may send them. Everything else
that is not a message of the schema is `Malformed`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sized
from datetime import UTC, datetime
from typing import Any, NoReturn

from cellwall.apps.doors.e2b.daemon.connect.schema import (
    MOST_ITEMS,
    RANGES,
    Field,
    Malformed,
    Message,
    Value,
    json_name,
)


def decoded(message: Message, data: bytes) -> Value:
    """Return the message in JSON text. Raises Malformed."""
    try:
        found = json.loads(data or b"{}", parse_constant=_no_constant)
    except RecursionError:
        raise Malformed("JSON: it is nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"JSON: {error}") from None
    return _message(message, found, message.name)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _message(message: Message, found: object, where: str) -> Value:
    if not isinstance(found, dict):
        raise Malformed(f"{where}: not an object")
    value: Value = {}
    for given, each in found.items():
        name = message.by_json_name.get(given)
        if name is None or each is None:
            continue
        value[name] = _field(message.fields[name], each, f"{where}.{name}")
    if sum(message.fields[name].is_alternative for name in value) > 1:
        raise Malformed(f"{where}: only one of its fields may be set")
    return value


def _field(field: Field, found: object, where: str) -> Any:  # noqa: ANN401 - by the schema
    if not field.is_repeated:
        return _one(field, found, where)
    if not isinstance(found, list):
        raise Malformed(f"{where}: not a list")
    _check_count(found, where)
    return [_one(field, each, where) for each in found]


def _check_count(found: Sized, where: str) -> None:
    if len(found) > MOST_ITEMS:
        raise Malformed(f"{where}: more than {MOST_ITEMS} items")


def _one(field: Field, found: object, where: str) -> Any:  # noqa: ANN401 - by the schema
    if field.message is not None:
        return _message(field.message, found, where)
    if field.kind == "enum":
        return _enum(field, found, where)
    return _READ[field.kind](found, where, field.kind)


def _text(found: object, where: str, _: str) -> str:
    if not isinstance(found, str):
        raise Malformed(f"{where}: not text")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{where}: not Unicode text") from None
    return found


def _bytes(found: object, where: str, kind: str) -> bytes:
    text = _text(found, where, kind).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise Malformed(f"{where}: not base64") from None


def _bool(found: object, where: str, _: str) -> bool:
    if not isinstance(found, bool):
        raise Malformed(f"{where}: not true or false")
    return found


def _number(found: object, where: str, kind: str) -> int:
    low, high = RANGES[kind]
    if isinstance(found, str) and found.removeprefix("-").isascii() and len(found) <= 20:
        found = int(found) if found.removeprefix("-").isdecimal() else found
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
        raise Malformed(f"{where}: not a number of {kind}")
    return found


def _enum(field: Field, found: object, where: str) -> int:
    if isinstance(found, str):
        if found not in field.names:
            raise Malformed(f"{where}: {found[:40]!r} is no value of it")
        return field.names[found]
    return _number(found, where, "enum")


def _map(found: object, where: str, kind: str) -> dict[str, str]:
    if not isinstance(found, dict):
        raise Malformed(f"{where}: not an object")
    _check_count(found, where)
    return {_text(name, where, kind): _text(each, where, kind) for name, each in found.items()}


def _timestamp(found: object, where: str, kind: str) -> float:
    try:
        return datetime.fromisoformat(_text(found, where, kind)).timestamp()
    except (ValueError, OverflowError):
        raise Malformed(f"{where}: not a time of RFC 3339") from None


_READ: Mapping[str, Callable[[object, str, str], Any]] = {
    "string": _text,
    "bytes": _bytes,
    "bool": _bool,
    "uint32": _number,
    "sint32": _number,
    "int64": _number,
    "map": _map,
    "timestamp": _timestamp,
}


# -- out ---------------------------------------------------------------------------------------


def encoded(message: Message, value: Value) -> bytes:
    """Return a message as JSON text of ASCII alone."""
    return json.dumps(_shown(message, value), separators=(",", ":")).encode("ascii")


def _shown(message: Message, value: Value) -> dict[str, Any]:
    return {
        json_name(name): _shown_field(message.fields[name], each) for name, each in value.items()
    }


def _shown_field(field: Field, each: Any) -> Any:  # noqa: ANN401 - by the schema
    if field.is_repeated:
        return [_shown_one(field, one) for one in each]
    return _shown_one(field, each)


def _shown_one(field: Field, each: Any) -> Any:  # noqa: ANN401 - by the schema
    if field.message is not None:
        return _shown(field.message, each)
    shows = _SHOW.get(field.kind)
    if shows is not None:
        return shows(each)
    if field.kind == "enum":
        names = [name for name, number in field.names.items() if number == each]
        return names[0] if names else each
    return each


def rfc3339(seconds: float) -> str:
    """Return a time with microseconds; a time that no calendar has becomes the epoch."""
    try:
        shown = datetime.fromtimestamp(seconds if math.isfinite(seconds) else 0.0, UTC)
    except (ValueError, OverflowError, OSError):
        shown = datetime.fromtimestamp(0, UTC)
    return shown.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


_SHOW: Mapping[str, Callable[[Any], Any]] = {
    "bytes": lambda data: base64.b64encode(data).decode("ascii"),
    "int64": str,
    "timestamp": rfc3339,
}
