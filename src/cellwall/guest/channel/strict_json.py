"""JSON of frames, parsed and written by the C code under `json` without the package over it.

The package loads regular expressions and enumerations, thirty milliseconds of a cold start in a
sandbox whose files are far away. What a text may hold is `json`'s rule, without NaN and infinity;
texts are written in `json`'s compact form, in ASCII.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\n\r"


class _Rules:
    """The decoder attributes that the C scanner reads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int

    def __init__(self, parse_constant: Callable[[str], Any]) -> None:
        self.parse_constant = parse_constant
        self.memo: dict[str, str] = {}


def parser(parse_constant: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser of whole texts; it calls `parse_constant` for NaN and infinity.

    The parser raises ValueError for text that is not JSON, RecursionError for too deep nesting.
    """
    try:
        from _json import make_scanner
    except ImportError:  # an interpreter built without it
        import json

        return json.JSONDecoder(parse_constant=parse_constant).decode
    rules: Any = _Rules(parse_constant)
    scan = make_scanner(rules)

    def parse(text: str) -> Any:  # noqa: ANN401  whatever the text holds
        text = text.strip(_SPACE)
        try:
            value, end = scan(text, 0)
        except StopIteration as stop:
            raise ValueError(f"JSON: expected a value at character {stop.value}") from None
        if end != len(text):
            raise ValueError(f"JSON: more text after a value, at character {end}")
        return value

    return parse


def is_nested(value: object, most_levels: int) -> bool:
    """Return whether lists and objects in `value` nest deeper than `most_levels`.

    `value` must not contain a cycle.
    """
    level: list[Any] = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(most_levels):
        if not level:
            return False
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list, tuple))
        ]
    return bool(level)


def _dumper() -> Callable[[Any], str]:
    """Return a writer of compact JSON; it raises ValueError or TypeError for other values."""
    try:
        from _json import encode_basestring_ascii, make_encoder

        encode = make_encoder(
            None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, False
        )
        encode({}, 0)
    except (ImportError, TypeError):  # built without the C code, or with another signature
        import json

        return json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    return lambda value: "".join(encode(value, 0))


def _refuse(thing: object) -> Any:  # noqa: ANN401  never returns
    raise TypeError(f"JSON: cannot write {type(thing).__name__}")


dump = _dumper()
