"""What callers are told of a context: its name, which is text, and what it speaks."""

from __future__ import annotations

from cellwall.model.errors import UsageError
from cellwall.model.unicode import utf8

_MOST_CHARACTERS = 64


class ContextName(str):
    """A context's name that knows the context's language."""

    __slots__ = ("language",)

    language: str
    """The language's own name, as in `registry`."""

    def __new__(cls, name: str, language: str = "python") -> ContextName:
        """`name` as text, with the `language` beside it."""
        made = super().__new__(cls, name)
        made.language = language
        return made


def check_name(name: object) -> str:
    """Return `name` if a context may be called so. Raises UsageError.

    It is one segment of a path of the HTTP API. `.` and `..` are none, however they are quoted:
    clients and proxies take them out, and what is asked for then is the sandbox itself.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= _MOST_CHARACTERS:
        raise UsageError(
            f"context name: needs 1 to {_MOST_CHARACTERS} characters", remedy="shorten it"
        )
    utf8(name, "context name")
    if name in {".", ".."} or set(name) & {"/", "\0"}:
        raise UsageError(
            f"context name: {name!r} cannot stand in an address",
            remedy="give letters and digits; `.`, `..` and a `/` are none",
        )
    return name
