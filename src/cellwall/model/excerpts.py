"""Excerpts: text cut to a budget, keeping both ends, with a note of how much is missing.

Pure, and linear in the text, which hostile code wrote. `for_model` knows the text's meaning. The
invariant: a result is never longer than its budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LINE_SLACK = 120
"""Number of characters that may be given up so that a cut falls between two lines."""


def plain(text: str) -> str:
    """Return `text` as a terminal would leave it: no colours, only the last state of a line."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text)


def cut_middle(text: str, budget_chars: int, kept_in: str | None = None) -> str:
    """Return `text` in at most `budget_chars`, without its middle if it is longer.

    `kept_in` names the file that holds the whole text, for the note on what is missing.
    """
    if len(text) <= budget_chars:
        return text
    where = f"; all of it is in {kept_in}" if kept_in else ""
    note = _note(len(text), text.count("\n"), where)
    room = budget_chars - len(note)
    if room < 2:
        return text[:budget_chars]
    head_end = _line_end(text, (room + 1) // 2)
    tail_start = _line_start(text, len(text) - room // 2)
    gap = text[head_end:tail_start]
    return text[:head_end] + _note(len(gap), gap.count("\n"), where) + text[tail_start:]


def _note(characters: int, lines: int, where: str) -> str:
    counted = f", {lines:,} lines" if lines else ""
    return f"\n[... {characters:,} characters{counted} left out here{where} ...]\n"


def _line_end(text: str, at: int) -> int:
    """Return the end of the last line that ends shortly before `at`."""
    found = text.rfind("\n", max(0, at - _LINE_SLACK), at)
    return at if found <= 0 else found


def _line_start(text: str, at: int) -> int:
    """Return the start of the first line that begins shortly after `at`."""
    found = text.find("\n", at, at + _LINE_SLACK)
    return at if found < 0 or found + 1 == len(text) else found + 1


def shares(sizes: Mapping[str, int], budget: int) -> dict[str, int]:
    """Divide `budget` fairly: what a part needs less than an even share goes to the others."""
    given: dict[str, int] = {}
    left = max(0, budget)
    for number, name in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        given[name] = min(sizes[name], left // (len(sizes) - number))
        left -= given[name]
    return given
