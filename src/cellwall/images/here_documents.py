"""Here-documents of a Dockerfile: the lines behind an instruction that are part of it.

Pure. As BuildKit has them: a word `<<NAME`, with `-` where leading tabs do not count, and quoted
where variables stay as they are. Each takes lines up to the one that is its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MARK = re.compile(
    r"[0-9]*<<(?P<tabs>-?)(?P<quote>[\"']?)(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,127})(?P=quote)"
)


class Unended(Exception):
    """The file ends inside of a here-document; its argument is the name."""


@dataclass(frozen=True, slots=True)
class HereDocument:
    """One of them."""

    word: str
    """The word that stands for it, as it was written."""
    name: str
    text: str
    """Its lines, as they are."""
    expands: bool
    """Whether variables in it get their values, where it is copied."""
    has_tabs: bool
    """Whether leading tabs do not count."""

    @property
    def content(self) -> str:
        """Its lines, without tabs that do not count."""
        return re.sub(r"^\t+", "", self.text, flags=re.MULTILINE) if self.has_tabs else self.text


def documents(words: Sequence[str], lines: Iterator[tuple[int, str]]) -> tuple[HereDocument, ...]:
    """Return the documents that an instruction's words begin; `lines` loses theirs.

    Raises `Unended`.
    """
    marks = [mark for word in words if (mark := _MARK.fullmatch(word)) is not None]
    return tuple(_read(mark, lines) for mark in marks)


def _read(mark: re.Match[str], lines: Iterator[tuple[int, str]]) -> HereDocument:
    name, has_tabs = mark["name"], bool(mark["tabs"])
    found: list[str] = []
    for _, line in lines:
        if (line.lstrip("\t") if has_tabs else line) == name:
            text = "".join(f"{each}\n" for each in found)
            return HereDocument(mark[0], name, text, not mark["quote"], has_tabs)
        found.append(line)
    raise Unended(name)


def in_shell(command: str, found: Sequence[HereDocument]) -> str:
    """Return what a shell is told for a `RUN`: a document that stands alone is its program."""
    if len(found) == 1 and command == found[0].word:
        return found[0].content
    return "\n".join([command, *(f"{each.text}{each.name}" for each in found)])
