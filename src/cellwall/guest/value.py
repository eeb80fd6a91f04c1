"""A program's result as strict JSON.

Used by `program.py`. It is not a general serialiser: what JSON cannot say exactly is refused with
the name of its type, and nothing is pickled or guessed.

numpy and pandas are recognised by name and never imported: an object of theirs can only exist
when they are loaded already.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from cellwall.guest.outbox import MAX_BODY_BYTES

if TYPE_CHECKING:
    from typing import Any


class Encoded(NamedTuple):
    """The header fields and body of a `value` event."""

    header: dict[str, Any]
    body: bytes


class _CannotSay(TypeError):
    """Carries the name of the type that JSON has no form for."""


def encode_value(value: object) -> Encoded:
    """Encode a result; a refusal is a header without a body, never an exception."""
    try:
        body = json.dumps(value, allow_nan=False, default=_plain_form).encode("ascii")
    except _CannotSay as refusal:
        return _refused(str(refusal))
    except ValueError:
        return _refused(f"{type(value).__name__} (NaN, infinity or a cycle)")
    except Exception:  # noqa: BLE001  keys that are no strings, endless depth, caller's methods
        return _refused(type(value).__name__)
    if len(body) > MAX_BODY_BYTES:
        return _refused(f"{type(value).__name__} ({len(body)} bytes; limit {MAX_BODY_BYTES})")
    return Encoded({"ev": "value"}, body)


def encode_fields(fields: dict[str, str]) -> bytes:
    """Encode the fields of an `error` event: at most six bytes a character, whatever it is.

    As ASCII a character beyond the first plane would take twelve.
    """
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _refused(reason: str) -> Encoded:
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
