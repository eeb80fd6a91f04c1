"""What a program said on stderr about the error that ended it, as its language words it.

A description: the text is the program's own and may claim anything, so it counts only where the
kernel's word on the end is that of an uncaught error (`Language.error_status`). Bounded, whatever
arrives; patterns are anchored to lines, so that they cost no more than a look.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellwall.model.execution import ExecutionError

if TYPE_CHECKING:
    from cellwall.languages.entries.language import Language

_LOOK_CHARACTERS = 16 * 1024
_VALUE_CHARACTERS = 2000
COMPILE_ERROR = "CompileError"


def uncaught(language: Language, file: str, stderr: str) -> ExecutionError | None:
    """Return the uncaught error that `stderr` ends with, or None if there is none to be seen."""
    if not language.error:
        return None
    text = stderr[-_LOOK_CHARACTERS:]
    found = re.search(language.error, text, re.MULTILINE)
    if found is None:
        return None
    groups = found.groupdict()
    place = groups.get("line") or _line(language.line, file, text)
    return ExecutionError(
        (groups.get("name") or "Error")[:200],
        (groups.get("value") or "").strip()[:_VALUE_CHARACTERS],
        text,
        int(place) if place else None,
    )


def line_of(language: Language, file: str, traceback: str) -> int | None:
    """Return the line of `file` that a traceback of the language names, or None."""
    found = _line(language.line, file, traceback[-_LOOK_CHARACTERS:])
    return int(found) if found else None


def compile_error(file: str, output: str) -> ExecutionError:
    """Return what a compiler said, with the first line of the program's it names."""
    text = output[:_LOOK_CHARACTERS]
    name = re.escape(file)
    found = re.search(rf"{name}(?:[:(]|\", line |:? line ){{1,2}}(?P<line>\d{{1,9}})", text)
    first = next(
        (line for line in text.splitlines() if "error" in line.lower()),
        text.partition("\n")[0],
    )
    line = int(found["line"]) if found else None
    return ExecutionError(COMPILE_ERROR, first.strip()[:_VALUE_CHARACTERS], output, line)


def _line(pattern: str, file: str, text: str) -> str | None:
    if not pattern:
        return None
    found = re.search(pattern.replace("{file}", re.escape(file)), text, re.MULTILINE)
    return found["line"] if found else None
