"""A program's result as strict JSON.

Used by `program.py`. It is not a general serialiser: a value that JSON cannot express exactly is
refused with the name of its type, and nothing is pickled or guessed.

numpy and pandas are recognised by name and never imported: an object of theirs can only exist when
they are already loaded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from cellwall.guest.channel.outbox import MAX_BODY_BYTES
from cellwall.guest.channel.strict_json import is_nested

if TYPE_CHECKING:
    from typing import Any

_MOST_LEVELS = 128
_MOST_FORM_LEVELS = 64
"""Maximum nesting of the form that numpy or pandas gives an object.

Together with `_MOST_LEVELS` it stays below the host's 200; the host takes deeper nesting for an
attack and kills the sandbox.
"""


class Encoded(NamedTuple):
    """The header fields and body of a `value` event."""

    header: dict[str, Any]
    body: bytes


class _CannotSay(TypeError):
    """JSON has no form for a type; the error carries the type's name."""


def encode_value(value: object) -> Encoded:
    """Encode a result; a refusal is a header without a body, never an exception."""
    forms: list[object] = []

    def plain_form(thing: object) -> object:
        forms.append(_plain_form(thing))
        return forms[-1]

    try:
        body = json.dumps(value, allow_nan=False, default=plain_form).encode("ascii")
    except _CannotSay as refusal:
        return refused(str(refusal))
    except ValueError:
        return refused(f"{type(value).__name__} (NaN, infinity or a cycle)")
    except Exception:  # noqa: BLE001  keys that are no strings, endless depth, caller's methods
        return refused(type(value).__name__)
    if len(body) > MAX_BODY_BYTES:
        return refused(f"{type(value).__name__} ({len(body)} bytes; limit {MAX_BODY_BYTES})")
    # Only now, when the value is known to have no cycle; and few values have as many brackets.
    if body.count(b"[") + body.count(b"{") > _MOST_LEVELS and _is_nested(value, forms):
        return refused(f"{type(value).__name__} (nested deeper than {_MOST_LEVELS} levels)")
    return Encoded({"ev": "value"}, body)


def encode_fields(fields: dict[str, str]) -> bytes:
    """Encode the fields of an `error` event, with at most six bytes for any character.

    As ASCII a character beyond the first plane would take twelve.
    """
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _is_nested(value: object, forms: list[object]) -> bool:
    return is_nested(value, _MOST_LEVELS) or any(is_nested(f, _MOST_FORM_LEVELS) for f in forms)


def refused(reason: str) -> Encoded:
    """Return a refusal that says why a result has no value."""
    return Encoded({"ev": "value", "unserialisable": reason[:200]}, b"")


def _plain_form(thing: Any) -> object:  # noqa: ANN401  the caller's objects
    library = str(type(thing).__module__).partition(".")[0]
    if library == "numpy" and hasattr(thing, "tolist"):
        return thing.tolist()
    if library == "pandas":
        for method in ("to_dict", "tolist", "isoformat"):
            if hasattr(thing, method):
                return getattr(thing, method)()
    raise _CannotSay(type(thing).__name__)
