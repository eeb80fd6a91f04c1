"""When what was typed is one whole input of `cellwall shell`, for each language.

Lines in, inputs out. Called by `shell`. Invariant: nothing typed is run here; Python is compiled
only to see whether it is complete, other languages are only looked at.
"""

from __future__ import annotations

import codeop
import re
import warnings
from collections.abc import Callable, Sequence

IsComplete = Callable[[Sequence[str]], bool]

_QUOTED = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|//[^\n]*|(?m:^\s*#.*$)""")


class Collector:
    """Gathers lines until they are one complete input."""

    def __init__(self, language: str = "python") -> None:
        self._lines: list[str] = []
        self._is_complete = _RULES.get(language, _is_ended)

    @property
    def is_empty(self) -> bool:
        """Report whether a new input begins."""
        return not self._lines

    def feed(self, line: str) -> str | None:
        """Add a line; return the whole input once it is complete."""
        self._lines.append(line)
        return self.rest() if self._is_complete(self._lines) else None

    def rest(self) -> str | None:
        """Return what is left when no more lines will come."""
        source = "\n".join(self._lines)
        self._lines.clear()
        return source if source.strip() else None

    def clear(self) -> None:
        """Forget what was gathered."""
        self._lines.clear()


def _is_python(lines: Sequence[str]) -> bool:
    source = "\n".join(lines)
    if len(lines) == 1 and source.lstrip().startswith(("%", "!", "?")):
        return True  # a magic, if the template has IPython
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return codeop.compile_command(source, "<shell>", "single") is not None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        # Several statements at once are not "single"; what is wrong is reported from inside.
        return True


def _is_closed(lines: Sequence[str]) -> bool:
    """Whether every bracket is closed; two empty lines end an input that has miscounted."""
    if len(lines) > 1 and not lines[-1].strip() and not lines[-2].strip():
        return True
    code = _QUOTED.sub("", "\n".join(lines))
    return sum(code.count(each) for each in "([{") <= sum(code.count(each) for each in ")]}")


def _is_statement(lines: Sequence[str]) -> bool:
    return lines[-1].rstrip().endswith(";") or _is_ended(lines)


def _is_ended(lines: Sequence[str]) -> bool:
    return not lines[-1].strip()


_RULES: dict[str, IsComplete] = {
    "python": _is_python,
    **dict.fromkeys(("javascript", "typescript", "java", "r"), _is_closed),
    "sql": _is_statement,
}
"""By language; in others, whose blocks are made of words, an input ends with an empty line."""
