"""Context names: what callers get for a context, text that also has the context's language."""

from __future__ import annotations

from cellwall.model.errors import UsageError
from cellwall.model.unicode import utf8

_MOST_CHARACTERS = 64


class ContextName(str):
    """Name of a context, with the context's language."""

    __slots__ = ("language",)

    language: str
    """Name of the language, as in `registry`."""

    def __new__(cls, name: str, language: str = "python") -> ContextName:
        """Return `name` as text, with `language` as an attribute."""
        made = super().__new__(cls, name)
        made.language = language
        return made


def check_name(name: object) -> str:
    """Return `name` if it is a valid context name. Raises UsageError.

    A name is one segment of a path of the HTTP API. `.` and `..` are not allowed, however they are
    quoted: clients and proxies remove them, and the request would address the sandbox itself.
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
