"""One request of the host, read field by field.

`init/main.py` and the operations use it. It checks shapes, not meaning: whether a path exists is
found out by using it.

Every field that an operation reads goes through here, so that a request of the wrong shape is
refused with `invalid` and never surfaces as an exception deep inside init.
"""

from __future__ import annotations

from typing import Any

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.channel.frames import Header

_MOST = 2**63 - 1


class Request:
    """A request's header and body; `id` and `op` are already known to be well formed."""

    def __init__(self, header: Header, body: bytes) -> None:
        """`id` becomes 0 when the header has none that could be answered."""
        self._header = header
        self.body = body
        op = header.get("op")
        number = header.get("id")
        self.op = op if isinstance(op, str) else ""
        self.id = number if type(number) is int and 0 < number <= _MOST else 0

    def _wrong(self, name: str, expected: str) -> Refusal:
        return Refusal("invalid", f"{self.op or 'request'}: field {name!r} must be {expected}")

    def text(self, name: str, default: str | None = None) -> str:
        """Return the string in a field; it has no NUL."""
        value = self._header.get(name, default)
        if not isinstance(value, str) or "\0" in value:
            raise self._wrong(name, "a string without NUL")
        return value

    def path(self, name: str = "path") -> str:
        """Return the path in a field: not empty, no NUL."""
        value = self.text(name)
        if not value:
            raise self._wrong(name, "a path that is not empty")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the given words, by default the first."""
        value = self._header.get(name, choices[0])
        if value not in choices:
            raise self._wrong(name, "one of " + ", ".join(choices))
        return str(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the boolean in a field."""
        value = self._header.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def integer(
        self, name: str, default: int | None = None, low: int = 0, high: int = _MOST
    ) -> int:
        """Return the integer in a field, within bounds."""
        value = self._header.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        """Return the integer in a field, within bounds, or None for null."""
        return None if self._header.get(name) is None else self.integer(name, low=low, high=high)

    def words(self, name: str) -> list[str]:
        """Return the list of strings in a field; they have no NUL."""
        value = self._header.get(name, [])
        if not isinstance(value, list) or not all(
            isinstance(word, str) and "\0" not in word for word in value
        ):
            raise self._wrong(name, "a list of strings without NUL")
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return the object in a field, or None for null."""
        value = self._header.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object or null")
        return value

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables in a field."""
        value = self.mapping(name) or {}
        for key, word in value.items():
            if not key or "=" in key or "\0" in key or not isinstance(word, str) or "\0" in word:
                raise self._wrong(name, "an object of names to strings")
        return value

    def terminal(self, name: str) -> tuple[int, int] | None:
        """Return rows and columns, or None for null."""
        value = self.mapping(name)
        if value is None:
            return None
        size = Request({"op": self.op, **value}, b"")
        return size.integer("rows", 24, 1, 65535), size.integer("cols", 80, 1, 65535)
