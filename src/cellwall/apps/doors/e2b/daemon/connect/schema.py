"""Schema: protobuf messages as data, from which both their JSON and their binary form are read.

A value is a dictionary by field name (`snake_case`): text, bytes, numbers, bools, enums as numbers,
a timestamp as seconds since the epoch. A field that is not set is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

Kind = Literal[
    "string", "bytes", "bool", "uint32", "sint32", "int64", "enum", "timestamp", "map", "message"
]
Value = dict[str, Any]
"""One message."""

RANGES: Mapping[str, tuple[int, int]] = {
    "uint32": (0, 2**32 - 1),
    "sint32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "enum": (-(2**31), 2**31 - 1),
}


MOST_ITEMS = 16_384
"""Maximum number of fields of a request's messages in binary, and of items of its lists and maps:
each costs microseconds, in which the server does nothing else."""


class Malformed(ValueError):
    """Bytes that are no message of the schema; the text says where."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `map` is a map from text to text."""

    number: int
    kind: Kind
    message: Message | None = None
    """Schema of a message's own fields."""
    names: Mapping[str, int] = field(default_factory=dict)
    """Numbers of an enum's values by name."""
    is_repeated: bool = False
    is_alternative: bool = False
    """Whether at most one such field of the message may be set."""


@dataclass(frozen=True)
class Message:
    """One message type."""

    name: str
    fields: Mapping[str, Field]

    @cached_property
    def by_number(self) -> Mapping[int, str]:
        """Names of the fields by their numbers."""
        return {each.number: name for name, each in self.fields.items()}

    @cached_property
    def by_json_name(self) -> Mapping[str, str]:
        """Names of the fields by what JSON may call them."""
        return {json_name(name): name for name in self.fields} | {
            name: name for name in self.fields
        }


@cache  # of the schema's few names; without it, it was half the work of a long listing
def json_name(name: str) -> str:
    """Return the `lowerCamelCase` name of a field."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
