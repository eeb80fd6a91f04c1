"""Calls: the code tool's schema, and the parsing of a model's calls.

`code_tool` runs them. Models get arguments wrong; every refusal is a sentence that says what was
wrong and what a right call looks like.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall import NotFound, UsageError


class BadCall(UsageError):
    """A model's arguments are invalid: for the model to read, not for the program to raise."""


@dataclass(frozen=True, slots=True)
class Call:
    """Code that a model requests to run."""

    code: str
    language: str


@dataclass(frozen=True, slots=True)
class Definition:
    """The tool as a model sees it."""

    name: str
    languages: tuple[str, ...]
    description: str

    @classmethod
    def of(cls, name: str, languages: Sequence[str], description: str | None) -> Definition:
        """Return a definition; without `description` it has the default one."""
        if isinstance(languages, str) or not languages:
            raise ValueError("languages: give one or more names, like ('python', 'bash')")
        return cls(name, tuple(languages), description or _described(tuple(languages)))

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments: an object whose members are all required."""
        members: dict[str, Any] = {
            "code": {
                "type": "string",
                "description": "The program text itself, without Markdown fences.",
            }
        }
        if len(self.languages) > 1:
            members["language"] = {
                "type": "string",
                "enum": list(self.languages),
                "description": "The language the code is written in.",
            }
        return {
            "type": "object",
            "properties": members,
            "required": list(members),
            "additionalProperties": False,
        }

    def read(self, arguments: object) -> Call:
        """Return the call in `arguments`, an object or its JSON text; or raise `BadCall`."""
        found = self._object(arguments)
        known = self.parameters["properties"]
        for name in found:
            if name not in known:
                raise self._bad(f"there is no argument {name!r}")
        for name in known:
            if name not in found:
                raise self._bad(f"the argument {name!r} is missing")
            if not isinstance(found[name], str):
                raise self._bad(f"the argument {name!r} is not text but {_kind(found[name])}")
        if not _is_source(found["code"]):
            raise self._bad("the argument 'code' has NUL or half a surrogate pair in it")
        language = str(found.get("language", self.languages[0]))
        if language not in self.languages:
            raise self._bad(f"there is no language {language!r}")
        return Call(found["code"], language)

    def _object(self, arguments: object) -> Mapping[str, Any]:
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                raise self._bad(f"the arguments are not JSON ({error})") from None
        if not isinstance(arguments, Mapping):
            raise self._bad(f"the arguments are not an object but {_kind(arguments)}")
        return arguments

    def _bad(self, what: str) -> BadCall:
        example = {"code": "print(6 * 7)"}
        if len(self.languages) > 1:
            example["language"] = self.languages[0]
        hint = f"call {self.name} again with arguments like {json.dumps(example)}"
        if len(self.languages) > 1:
            hint += f"; languages: {', '.join(self.languages)}"
        return BadCall(f"{self.name}: {what}", remedy=hint)

    def no_such_tool(self, name: object) -> NotFound:
        """Return the error for a call of a tool of another name."""
        return NotFound(f"there is no tool {name!r}", remedy=f"call {self.name} to run code")


def _described(languages: tuple[str, ...]) -> str:
    what = " or ".join((", ".join(languages[:-1]), languages[-1]) if languages[1:] else languages)
    text = (
        f"Run {what} code in a sandbox and return what it printed, the value of its last "
        "expression, its charts and its errors. Files stay until the conversation ends"
    )
    if "python" in languages:
        text += ", and so do variables and imports"
    return text + ". Time and memory are limited; there is no network."


def _is_source(code: str) -> bool:
    """Report whether `code` is text that a file can hold."""
    try:
        return b"\0" not in code.encode()
    except UnicodeEncodeError:
        return False


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    if value is None:
        return "null"
    return names.get(
        type(value), "a number" if isinstance(value, int | float) else "something else"
    )
