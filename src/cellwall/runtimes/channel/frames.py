"""Frames: the form of a guest's frame, strict JSON with the fields that each event must have.

It neither moves frames (`channel`) nor interprets them (`engine`). All of it was written by hostile
code; the invariant: a frame that passes is of the type it claims and can be encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cellwall.model.nesting import MOST_LEVELS, is_nested
from cellwall.runtimes.channel.loop_share import LARGE_BYTES, timed

_MOST_IN_HEADER = 8192
"""Maximum number of values in a header. Valid ones have some dozen; a list of contexts, or a
message with a path full of commas, appears to have up to 4,000. That many take less than a turn."""


class FrameError(ValueError):
    """The received data are not a frame of the protocol."""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):  # 1e999 would be sent on as invalid JSON
        raise ValueError(f"{text} is out of range")
    return number


_decode_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode


def strict_json(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """Decode hostile JSON: UTF-8, finite numbers, bounded depth, no lone surrogates.

    Its processor time is charged to the turn in which it is decoded (`loop_share`).
    """
    return timed(_strict_json, data)


def _strict_json(data: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        value = _decode_json(data.decode("utf-8"))
        # Few texts have as many brackets as levels are allowed, and counting them costs little.
        if data.count(b"[") + data.count(b"{") > MOST_LEVELS and is_nested(value):
            raise ValueError(f"nested deeper than {MOST_LEVELS} levels")
        # A lone surrogate can only come from an escape, and would fail at the next encode.
        return _without_surrogates(value) if b"\\u" in data else value
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from None


def parse_header(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """Decode the header of a frame; count the values of a large one before decoding it."""
    if len(text) > LARGE_BYTES:
        values = text.count(b",") + text.count(b"[") + text.count(b"{")
        if values > _MOST_IN_HEADER:
            raise FrameError(f"a header of {values} values is above the cap")
    return strict_json(text)


def _without_surrogates(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_small(value: object) -> bool:
    return value is None or (type(value) is int and -(1 << 31) <= value < 1 << 32)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_count(v) for v in value.values())


Check = Callable[[object], bool]
_SCHEMA: dict[str, dict[str, Check]] = {
    "ready": {"protocol": _is_count, "python": _is_text},
    "stdout": {},
    "stderr": {},
    "cut": {"stream": lambda v: v in ("stdout", "stderr"), "bytes": _is_count},
    "display": {"kind": lambda v: v in ("display", "result")},
    "error": {},
    "value": {},
    "call": {"call": _is_count, "tool": _is_text},
    "call_dropped": {"call": _is_count},
    "started": {"pid": _is_count},
    "chunk": {},
    "credit": {"bytes": _is_count},
    "connected": {},
    "data": {},
    "end": {},
    "closed": {"reset": _is_bool},
    "reply": {},
    "fail": {"code": _is_text, "message": _is_text},
    "done": {
        "exit_code": _is_small,
        "signal": _is_small,
        "alive": _is_bool,
        "raised": _is_bool,
        "cut": _is_counts,
        "rusage": _is_counts,
    },
}
"""Required fields by event. More fields are allowed and ignored: an older host must be able to talk
to a newer guest of the same protocol number."""


def check_frame(header: object) -> tuple[str, int]:
    """Return (event, request id) of a frame header that fits the schema, else `FrameError`."""
    if type(header) is not dict:
        raise FrameError("header is not an object")
    kind = header.get("ev")
    schema = _SCHEMA.get(kind) if isinstance(kind, str) else None
    if schema is None:
        raise FrameError(f"unknown event {str(kind)[:40]!r}")
    for name, check in schema.items():
        if not check(header.get(name)):
            raise FrameError(f"event {kind}: field {name!r} is not what it should be")
    number = header.get("id", 0)
    if not _is_count(number) or (number == 0) != (kind == "ready"):
        raise FrameError(f"event {kind}: bad request id")
    return str(kind), int(number)
