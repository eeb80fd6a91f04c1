"""A Dockerfile's text as stages of instructions, without its variables' values.

Pure. The format is that of Docker's "Dockerfile reference": directives, comments, continued lines,
and the exec form; what is not built here is refused with its line. `expand` gives values to
its words. Texts come from strangers: bytes, lines and instructions have bounds, and no work grows
faster than the text.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cellwall.images.here_documents import HereDocument, Unended, documents
from cellwall.images.image import machine_architecture
from cellwall.model.errors import UsageError

MOST_BYTES = 1 << 20
MOST_LINES = 20_000
MOST_INSTRUCTIONS = 1000
MOST_STAGES = 100
_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S*)\s*")
_FLAG = re.compile(r"--([a-z-]+)=(\S+)(?:\s+|$)")
_HERE = re.compile(r"(?<!<)<<-?[\"']?[A-Za-z_]+[\"']?")
"""What may be the beginning of a here-document; `<<<` is a shell's own."""
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_FLAGS: Mapping[str, frozenset[str]] = {
    "FROM": frozenset({"platform"}),
    "COPY": frozenset({"from", "chown", "chmod"}),
    "ADD": frozenset({"chown", "chmod"}),
    "RUN": frozenset({"mount"}),
}
WITHOUT_EFFECT = frozenset({"EXPOSE", "STOPSIGNAL", "MAINTAINER", "VOLUME", "HEALTHCHECK"})
"""Instructions that are taken and stand in the image's history alone."""
KNOWN = WITHOUT_EFFECT | {
    *(
        "FROM",
        "RUN",
        "COPY",
        "ADD",
        "ENV",
        "ARG",
        "WORKDIR",
        "USER",
        "ENTRYPOINT",
        "CMD",
        "SHELL",
        "LABEL",
    )
}
"""Instructions that are taken."""
_LISTS = frozenset({"RUN", "CMD", "ENTRYPOINT", "SHELL", "COPY", "ADD", "VOLUME"})
_REMEDY = "docs/images.md lists what a Dockerfile may have here"


class DockerfileInvalid(UsageError):
    """A Dockerfile that cannot be built; the message begins with its line."""

    line = 0
    """Number of the line."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction."""

    line: int
    """Number of its first line, from 1."""
    name: str
    """In upper case."""
    text: str
    """What follows the name and its flags, lines joined."""
    flags: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] | None = None
    """The list of the exec form; None for the shell form."""
    escape: str = "\\"
    """Character that takes its meaning from the next one."""
    documents: tuple[HereDocument, ...] = ()
    """Here-documents behind it."""

    def wrong(self, why: str, remedy: str = _REMEDY) -> DockerfileInvalid:
        """Return the error that names this instruction."""
        return invalid(self.line, f"{self.name}: {why}", remedy)

    def __str__(self) -> str:
        """Write it on one line."""
        flags = "".join(f"--{name}={value} " for name, value in self.flags.items())
        return f"{self.name} {flags}{self.text}"


@dataclass(frozen=True, slots=True)
class Stage:
    """One `FROM` and what follows it."""

    origin: Instruction
    base: str
    """A name of an image or of a stage before, with variables; `scratch` is nothing."""
    name: str
    """What `AS` says; empty without it."""
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A whole file."""

    arguments: tuple[Instruction, ...]
    """`ARG` before the first `FROM`."""
    stages: tuple[Stage, ...]


def invalid(line: int, why: str, remedy: str = _REMEDY) -> DockerfileInvalid:
    """Return an error that names a line."""
    error = DockerfileInvalid(f"Dockerfile, line {line}: {why}", remedy=remedy)
    error.line = line
    return error


def parse(data: bytes) -> Dockerfile:
    """Return what a Dockerfile says. Raises `DockerfileInvalid`."""
    if len(data) > MOST_BYTES:
        raise invalid(1, f"the file has more than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise invalid(1, "the file is no UTF-8") from None
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > MOST_LINES or "\0" in text:
        raise invalid(1, f"the file has more than {MOST_LINES} lines, or a NUL")
    escape = _escape(lines)
    numbered = iter(enumerate(lines, 1))
    found: list[Instruction] = []
    for line, joined in _joined(numbered, escape):
        if len(found) >= MOST_INSTRUCTIONS:
            raise invalid(line, f"there are more than {MOST_INSTRUCTIONS} instructions")
        found.append(_with_documents(_instruction(line, escape, joined), numbered))
    return _staged(found)


def _joined(numbered: Iterator[tuple[int, str]], escape: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with its line, lines joined and comments left out.

    Between two of them others may take lines.
    """
    parts: list[str] = []
    start = 0
    for number, raw in numbered:
        bare = raw.strip()
        if bare.startswith("#") or not bare:
            continue  # also between continued lines, as Docker does
        if not parts:
            start = number
        line = raw.rstrip() if parts else bare
        if line.endswith(escape):
            parts.append(line[:-1])
            continue
        yield start, "".join([*parts, line])
        parts = []
    if parts:
        yield start, "".join(parts)


def _escape(lines: list[str]) -> str:
    """Return the escape character, which directives at the top may change."""
    escape = "\\"
    for number, line in enumerate(lines, 1):
        said = _DIRECTIVE.fullmatch(line.strip())
        if said is None:
            break
        if said[1].lower() == "escape":
            if said[2] not in {"\\", "`"}:
                raise invalid(number, f"escape: {said[2][:20]!r} is neither a backslash nor `")
            escape = said[2]
    return escape


def _instruction(line: int, escape: str, joined: str) -> Instruction:
    word, _, rest = joined.partition(" ") if "\t" not in joined else _by_space(joined)
    name, rest = word.upper(), rest.strip()
    if name == "ONBUILD":
        raise invalid(line, "ONBUILD: it is not built here", "leave it out")
    if name not in KNOWN:
        raise invalid(line, f"{word[:40]!r} is no instruction")
    flags = {}
    while rest.startswith("--") and name in _FLAGS:
        said = _FLAG.match(rest)
        if said is None or said[1] not in _FLAGS[name]:
            raise invalid(line, f"{name}: {rest.split()[0][:60]!r} is not taken")
        if said[1] in flags:
            raise invalid(line, f"{name}: --{said[1]} is given twice", "give it once")
        flags[said[1]] = said[2]
        rest = rest[said.end() :]
    words = _list(rest) if name in _LISTS else None
    if not rest and name not in {"CMD", "ENTRYPOINT"}:
        raise invalid(line, f"{name}: it says nothing")
    made = Instruction(line, name, rest, flags, words, escape)
    if name == "RUN":
        bound(made)
    return made


def _with_documents(made: Instruction, lines: Iterator[tuple[int, str]]) -> Instruction:
    """Return the instruction with the here-documents behind it, whose lines it takes."""
    is_shell = made.words is None and made.name in {"RUN", "COPY", "ADD"}
    if not is_shell or not _HERE.search(made.text):
        return made
    try:
        found = documents(split(made, made.text), lines)
    except Unended as error:
        raise made.wrong(f"the here-document {error} does not end") from None
    if len(found) != len(_HERE.findall(made.text)):
        raise made.wrong("a here-document's mark is no word of its own", "write <<NAME as a word")
    if any(each.text.startswith("#!") for each in found) and made.text == found[0].word:
        raise made.wrong("#! in a here-document is not taken", "write `RUN program <<NAME`")
    return replace(made, documents=found)


class Bound(NamedTuple):
    """What of the context a `RUN` sees, and where."""

    source: str
    target: str


def bound(instruction: Instruction) -> Bound | None:
    """Return what `RUN --mount=type=bind` names; None without it. Raises `DockerfileInvalid`."""
    said = instruction.flags.get("mount")
    if said is None:
        return None
    fields = dict(part.partition("=")[::2] for part in said.split(","))
    target = fields.pop("target", "")
    source = fields.pop("source", "")
    if fields != {"type": "bind"} or not source:
        raise instruction.wrong(
            f"--mount={said[:60]} is not taken", "use type=bind,source=…,target=…, or leave it out"
        )
    if not target.startswith("/") or posixpath.normpath(target) != target or target == "/":
        raise instruction.wrong(f"--mount: {target[:60]!r} is no plain absolute path")
    return Bound(source, target)


def _by_space(joined: str) -> tuple[str, str, str]:
    parts = joined.split(None, 1)
    return parts[0], " ", parts[1] if len(parts) > 1 else ""


def _list(text: str) -> tuple[str, ...] | None:
    """Return the words of the exec form; None if it is no JSON list of texts."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return tuple(found)
    return None


def _staged(found: list[Instruction]) -> Dockerfile:
    arguments: list[Instruction] = []
    stages: list[tuple[Instruction, list[Instruction]]] = []
    for each in found:
        if each.name == "FROM":
            stages.append((each, []))
        elif stages:
            stages[-1][1].append(each)
        elif each.name == "ARG":
            arguments.append(each)
        else:
            raise each.wrong("it comes before the first FROM")
    if not 0 < len(stages) <= MOST_STAGES:
        raise invalid(1, f"there are {len(stages)} times FROM, not 1 to {MOST_STAGES}")
    return Dockerfile(
        tuple(arguments), tuple(_stage(origin, tuple(below)) for origin, below in stages)
    )


def _stage(origin: Instruction, below: tuple[Instruction, ...]) -> Stage:
    words = origin.text.split()
    name = ""
    if len(words) == 3 and words[1].upper() == "AS":
        name = words[2].lower()
        if not _NAME.fullmatch(name):
            raise origin.wrong(f"{name[:60]!r} is no name of a stage")
    elif len(words) != 1:
        raise origin.wrong("it is not `FROM image` or `FROM image AS name`")
    platform = origin.flags.get("platform", "")
    if platform not in {"", f"linux/{machine_architecture()}", "$BUILDPLATFORM", "$TARGETPLATFORM"}:
        raise origin.wrong(
            f"the platform {platform[:40]!r} is not this machine's",
            f"use linux/{machine_architecture()}",
        )
    return Stage(origin, words[0], name, below)


# -- words and variables ---------------------------------------------------------------------------

_MOST_VALUE = 64 << 10
_MOST_NESTED = 8


def assignments(instruction: Instruction, values: Mapping[str, str]) -> dict[str, str]:
    """Return what `ENV` or `LABEL` sets: `NAME=value …`, or the old form `NAME value`."""
    text = instruction.text
    first = text.split(None, 1)
    if "=" not in first[0]:
        if len(first) != 2:
            raise instruction.wrong("it is not NAME=value")
        return {_variable(instruction, first[0]): expand(instruction, first[1], values)}
    found = {}
    for word in split(instruction, text):
        name, equals, value = word.partition("=")
        if not equals:
            raise instruction.wrong(f"{word[:60]!r} is not NAME=value")
        found[_variable(instruction, name)] = expand(instruction, value, values)
    return found


def _variable(instruction: Instruction, name: str) -> str:
    bare = name.strip("\"'")
    if instruction.name != "LABEL" and not _VARIABLE.fullmatch(bare):
        raise instruction.wrong(f"{bare[:60]!r} is no name of a variable")
    return bare


def split(instruction: Instruction, text: str) -> list[str]:
    """Split at spaces outside of quotes; quotes and escapes stay, for `expand`."""
    words: list[str] = []
    word, quote, is_escaped = "", "", False
    for character in text:
        if is_escaped:
            word, is_escaped = word + character, False
            continue
        if character == instruction.escape and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character.isspace():
            if word:
                words.append(word)
            word = ""
            continue
        word += character
    if quote:
        raise instruction.wrong("a quotation does not end")
    return [*words, word] if word else words


def expand(
    instruction: Instruction, text: str, values: Mapping[str, str], *, has_quotes: bool = True
) -> str:
    """Return a word with its variables' values, without its quotes. Raises `DockerfileInvalid`.

    Quotes of a here-document are characters as any other: it has none (`has_quotes`).
    """
    return _Expansion(instruction, values, "\"'" if has_quotes else "").whole(text, 0)


class _Expansion:
    """One word; what it makes has a bound, so that no chain of variables grows without one."""

    def __init__(self, instruction: Instruction, values: Mapping[str, str], quotes: str) -> None:
        self._instruction = instruction
        self._values = values
        self._quotes = quotes

    def whole(self, text: str, depth: int) -> str:
        if depth > _MOST_NESTED:
            raise self._instruction.wrong(f"variables lie deeper than {_MOST_NESTED}")
        made: list[str] = []
        size, at, quote = 0, 0, ""
        while at < len(text):
            piece, at, quote = self._next(text, at, quote, depth)
            made.append(piece)
            size += len(piece)
            if size > _MOST_VALUE:
                raise self._instruction.wrong(f"a value has more than {_MOST_VALUE} characters")
        return "".join(made)

    def _next(self, text: str, at: int, quote: str, depth: int) -> tuple[str, int, str]:
        character = text[at]
        if character == self._instruction.escape and quote != "'":
            following = text[at + 1 : at + 2]
            is_kept = quote == '"' and following not in {'"', "$", self._instruction.escape}
            return (character if is_kept else "") + following, at + 2, quote
        if character in self._quotes and quote in {"", character}:
            return "", at + 1, "" if quote else character
        if character == "$" and quote != "'":
            piece, end = self._variable(text, at + 1, depth)
            return piece, end, quote
        return character, at + 1, quote

    def _variable(self, text: str, at: int, depth: int) -> tuple[str, int]:
        if text[at : at + 1] != "{":
            said = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").match(text, at)
            return ("$", at) if said is None else (self._values.get(said[0], ""), said.end())
        end = _closing(text, at)
        said = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])(.*))?", re.S).fullmatch(
            text[at + 1 : end]
        )
        if end < 0 or said is None:
            raise self._instruction.wrong(f"{text[at - 1 : at + 40]!r} is no variable")
        return self._chosen(said[1], said[2] or "", said[3] or "", depth), end + 1

    def _chosen(self, name: str, how: str, other: str, depth: int) -> str:
        value = self._values.get(name)
        is_there = bool(value) if how.startswith(":") else value is not None
        if how.endswith("+"):
            return self.whole(other, depth + 1) if is_there else ""
        if is_there or not how:
            return value or ""
        if how.endswith("?"):
            raise self._instruction.wrong(f"{name}: {self.whole(other, depth + 1)[:200]}")
        return self.whole(other, depth + 1)


def _closing(text: str, at: int) -> int:
    """Return where the brace at `at` closes; -1 if it does not."""
    depth = 0
    for position in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return -1
