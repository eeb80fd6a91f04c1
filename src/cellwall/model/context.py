"""What callers are told of a context: its name, which is text, and what it speaks."""

from __future__ import annotations


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
