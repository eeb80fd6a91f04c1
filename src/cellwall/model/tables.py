"""Tables: the HTML table of a data frame, converted to Markdown.

Only plain rectangles: anything else is None, and the caller shows the plain text instead. The HTML
was written by hostile code, so it is bounded and split at its tags by one expression without
backtracking; Python's own parser takes quadratic time on crafted input.
"""

from __future__ import annotations

import re
from html import unescape

_MOST_CHARS = 256 * 1024
_MOST_COLUMNS = 100
_TAG = re.compile(r"(<[^<>]*>)")
_NAME = re.compile(r"</?([a-z0-9]+)", re.IGNORECASE)
_SPAN = re.compile(r"\b(?:row|col)span\s*=\s*[\"']?(?!1\b)", re.IGNORECASE)


def as_markdown(html: str) -> str | None:
    """Return the one table in `html` with the paragraphs around it, or None if it is not plain."""
    if html.count("<table") != 1 or len(html) > _MOST_CHARS:
        return None
    table = _Table()
    for number, piece in enumerate(_TAG.split(html)):
        if number % 2 == 0:
            table.text(piece)
        elif not table.tag(piece):
            return None
    return table.rendered()


class _Table:
    """Collector of cells by row, and of the text of paragraphs."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._notes: list[str] = []
        self._text: list[str] | None = None

    def text(self, piece: str) -> None:
        """Handle the text between two tags; outside of cells and paragraphs it is layout."""
        if self._text is not None:
            self._text.append(piece)

    def tag(self, tag: str) -> bool:
        """Handle a tag; False if the table is not a plain rectangle."""
        found = _NAME.match(tag)
        name = found[1].lower() if found else ""
        is_end = tag.startswith("</")
        if name == "tr" and not is_end:
            self._rows.append([])
        elif name in ("td", "th"):
            return self._cell(tag, is_end=is_end)
        elif name == "p":
            self._paragraph(is_end=is_end)
        return True

    def _cell(self, tag: str, *, is_end: bool) -> bool:
        if is_end and self._text is not None and self._rows:
            self._rows[-1].append(_flat(self._text).replace("|", "\\|"))
        self._text = None if is_end else []
        return bool(self._rows) and not _SPAN.search(tag)

    def _paragraph(self, *, is_end: bool) -> None:
        if is_end and self._text is not None:
            self._notes.append(_flat(self._text))
        self._text = None if is_end else []

    def rendered(self) -> str | None:
        """Return the Markdown, with empty cells where a row is short."""
        width = max(map(len, self._rows), default=0)
        if not 0 < width <= _MOST_COLUMNS:
            return None
        even = [row + [""] * (width - len(row)) for row in self._rows]
        lines = [_line(even[0]), _line(["---"] * width), *map(_line, even[1:])]
        return "\n".join([*lines, *(["", *self._notes] if self._notes else [])])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _flat(parts: list[str]) -> str:
    return " ".join(unescape("".join(parts)).split())
