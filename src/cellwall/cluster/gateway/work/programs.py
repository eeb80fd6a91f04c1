"""The programs of a batch's body, taken one by one: those of lines, and those of one JSON object.

Used by `batch`. A program is never built here, only found and cut out: what is wrong inside one is
for its node to say. Parsing a body at once would build thirty times its size, and keep the event
loop for seconds, in a thread too, since the parser does not let go of the interpreter. The
invariants: the loop has its turn after a bounded piece of work, whatever a body says; what is taken
is no longer in `size`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from array import array
from collections.abc import Callable
from typing import NamedTuple

from cellwall.model.errors import CellwallError, UsageError

MOST_LISTED = 10_000
"""Programs of one JSON object; as a server's (`schemas.requests.BatchBody`)."""
MOST_CONCURRENCY = 1024
BODY_BYTES = 64 << 20
LINE_BYTES = 16 << 20
_WINDOW_BYTES = 16 * 1024
"""Bytes that one search looks at: at most a millisecond or two."""
_FIRST_BYTES = 256
TURN_BYTES = 32 * 1024
"""Bytes that were looked at after which the loop has its turn."""
_CALL_BYTES = 64
"""Bytes that one search costs besides those it looks at."""
_NAME_BYTES = 256
_UNUSUAL = (b'"tools"', b'"background"', b"\\u")
"""What a program has that may say what those of a batch may not; a letter may be escaped."""
_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_NO_OPEN_STRING = re.compile(rb'(?:[^"]++|' + _STRING + rb")*+", re.DOTALL)
_TO_MARK = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+[\[\]{}]", re.DOTALL)
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]*+")
_NUMBER = re.compile(rb"[-+.0-9A-Za-z]{0,32}")
_MARKS = b"[{]}"
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))
_DEPTHS = bytes.maketrans(_MARKS, b"\x01\x01\xff\xff")
_OBJECT_END, _LIST_END = b"}]"
_BLANKS = b" \t\r\n"


class Lines:
    """The programs of a body that has one per line, each from when its line is whole."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        """`on_empty` is called when more of the body is needed for the next program."""
        self._on_empty = on_empty
        self._body = bytearray()
        self._tail_bytes = 0
        """Bytes of the line that is not whole."""
        self._looked = 0
        """Bytes of the first line in which its end was not found."""
        self._is_whole = False
        self._fault: CellwallError | None = None
        self._news = asyncio.Event()
        self.waiting = 0
        """Lines that are whole and not taken, blank ones too."""
        self.concurrency = 0
        """Lines do not say how many are to run at once."""

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return len(self._body)

    def feed(self, data: bytes) -> None:
        """Take a piece. Raises UsageError if a line is too long."""
        ends = data.count(b"\n")
        self._tail_bytes = len(data) - data.rfind(b"\n") - 1 + (0 if ends else self._tail_bytes)
        if self._tail_bytes > LINE_BYTES:
            raise UsageError("batch: a program is too long", remedy="send less at once")
        self._body += data
        self.waiting += ends
        if ends:
            self._news.set()

    def end(self, fault: CellwallError | None = None) -> None:
        """Take the end of the body, or of its use: the lines before a fault are taken still."""
        self._is_whole, self._fault = True, fault
        self._news.set()

    async def take(self) -> bytes | None:
        """Return the next program; None: there is none. Raises the fault after the last line."""
        while True:
            await self._drop_blank()
            end = self._body.find(b"\n", self._looked)
            if end >= 0:
                self.waiting -= 1
                return self._cut(end, 1)
            self._looked = len(self._body)
            if self._fault is not None:
                self._cut(len(self._body))
                raise self._fault
            if self._is_whole:
                return self._cut(len(self._body)) or None
            self._news.clear()
            self._on_empty()
            await self._news.wait()

    async def _drop_blank(self) -> None:
        """Drop blank lines, and the blanks before a program."""
        while self._body and self._body[0] in _BLANKS:
            blank = self._cut(_end_of(_SPACE, self._body, 0))
            self.waiting -= blank.count(b"\n")
            await asyncio.sleep(0)

    def _cut(self, end: int, more: int = 0) -> bytes:
        cut = bytes(memoryview(self._body)[:end])
        del self._body[: end + more]
        self._looked = 0
        return cut


class Listed:
    """The programs of a body that is one JSON object, once that is whole."""

    def __init__(self) -> None:
        """Nothing is there yet."""
        self._body = bytearray()
        self._found: _Found | None = None
        self._next = 0
        self._fault: CellwallError | None = None
        self._ended = asyncio.Event()
        self.waiting = 0
        """Nothing is held back: no program is taken before the body is whole."""

    @property
    def size(self) -> int:
        """Bytes that are held, which is all until the batch has ended."""
        return len(self._body)

    @property
    def concurrency(self) -> int:
        """Number of programs at once that it asks for; 0: it does not say."""
        return 0 if self._found is None else self._found.concurrency

    def feed(self, data: bytes) -> None:
        """Take a piece. Raises UsageError if there is too much."""
        if len(self._body) + len(data) > BODY_BYTES:
            raise UsageError("batch: its programs are too long", remedy="send less at once")
        self._body += data

    def end(self, fault: CellwallError | None = None) -> None:
        """Take the end of the body, or of its use."""
        self._fault = fault
        self._ended.set()

    async def take(self) -> bytes | None:
        """Return the next program; None: there is none. Raises UsageError, before the first."""
        await self._ended.wait()
        if self._fault is not None:
            self._body.clear()
            raise self._fault
        if self._found is None:
            self._found = await _Search(self._body).run()
        if self._next == len(self._found.spans):
            return None
        begin, end = self._found.spans[self._next]
        self._next += 1
        return bytes(memoryview(self._body)[begin:end])


async def check(program: bytes) -> None:
    """Refuse what a program of a batch may not have. Raises UsageError."""
    if not any(word in program for word in _UNUSUAL):
        return
    try:
        found = await _Search(program).set_fields(frozenset({"tools", "background"}))
    except UsageError:
        return  # the node says what is wrong with it
    if "tools" in found:
        raise UsageError("tools: not for the programs of a batch", remedy="send it by itself")
    if found:
        raise UsageError("background: not for the programs of a batch", remedy="leave it out")


class _Found(NamedTuple):
    """What a body has."""

    spans: list[tuple[int, int]]
    """Where each program begins and ends."""
    concurrency: int


class _Search:
    """Finds the programs of one body. All that moves on says where in the body it is then."""

    def __init__(self, body: bytes | bytearray) -> None:
        self._body = body
        self._looked_bytes = 0

    async def run(self) -> _Found:
        """Return what the body has. Raises UsageError in a server's words."""
        spans: list[tuple[int, int]] = []
        concurrency: int | None = None
        seen: set[object] = set()
        at, is_last = await self._begin()
        while not is_last:
            name, at = await self._name(at)
            if name in seen:
                raise _wrong(f"{name}: it comes twice")
            seen.add(name)
            if name == "executions":
                spans, at = await self._list(at)
            elif name == "concurrency":
                concurrency, at = self._number(at)
            else:
                raise _wrong(f"{str(name)[:60]}: Extra inputs are not permitted")
            at, is_last = await self._after(at, _OBJECT_END)
        at = await self._space(at)
        if at < len(self._body):
            raise _wrong(_not_json(at))
        if "executions" not in seen:
            raise _wrong("executions: Field required")
        return _Found(spans, concurrency or 0)

    async def set_fields(self, names: frozenset[str]) -> set[object]:
        """Return which of some fields the body has with anything but false or null."""
        found: set[object] = set()
        at, is_last = await self._begin()
        while not is_last:
            name, at = await self._name(at)
            end = await self._value(at)
            if name in names and self._body[at:end] not in (b"null", b"false"):
                found.add(name)
            at, is_last = await self._after(end, _OBJECT_END)
        return found

    async def _begin(self) -> tuple[int, bool]:
        """Return where the first field of the body's object begins, and whether it has none."""
        at = await self._space(0)
        if self._body[at : at + 1] != b"{":
            is_value = at < len(self._body) and self._body[at] in b'["-0123456789tfn'
            raise _wrong("body: Input should be an object" if is_value else _not_json(at))
        at = await self._space(at + 1)
        return (at + 1, True) if self._body[at : at + 1] == b"}" else (at, False)

    async def _value(self, at: int) -> int:
        """Return the end of the value at `at`."""
        mark = self._body[at : at + 1]
        if mark in (b"{", b"["):
            return await self._object(at)
        if mark == b'"':
            return await self._text(at + 1)
        while (end := _end_of(_SCALAR, self._body, at)) > at:
            await self._did(end - at)
            at = end
        return at

    async def _list(self, at: int) -> tuple[list[tuple[int, int]], int]:
        """Return where the programs of the list at `at` are, and its end."""
        if self._body[at : at + 1] != b"[":
            raise _wrong("executions: Input should be a valid array")
        spans: list[tuple[int, int]] = []
        at = await self._space(at + 1)
        if self._body[at : at + 1] == b"]":
            raise _wrong("executions: List should have at least 1 item after validation, not 0")
        is_last = False
        while not is_last:
            if len(spans) == MOST_LISTED:
                raise _wrong(
                    f"executions: List should have at most {MOST_LISTED} items after validation"
                )
            if self._body[at : at + 1] != b"{":
                raise _wrong(f"executions.{len(spans)}: Input should be an object")
            end = await self._object(at)
            spans.append((at, end))
            at, is_last = await self._after(end, _LIST_END)
        return spans, at

    async def _after(self, at: int, end: int) -> tuple[int, bool]:
        """Return where what follows a value begins, and whether that was the last one."""
        at = await self._space(at)
        mark = self._body[at] if at < len(self._body) else 0
        if mark not in (end, ord(",")):
            raise _wrong(_not_json(at))
        return (at + 1, True) if mark == end else (await self._space(at + 1), False)

    async def _name(self, at: int) -> tuple[object, int]:
        """Return the name of a field, and where its value begins."""
        if self._body[at : at + 1] != b'"':
            raise _wrong(_not_json(at))
        end = await self._text(at + 1)
        name = _parsed(self._body[at : min(end, at + _NAME_BYTES)], at)
        at = await self._space(end)
        if self._body[at : at + 1] != b":":
            raise _wrong(_not_json(at))
        return name, await self._space(at + 1)

    def _number(self, at: int) -> tuple[int | None, int]:
        end = _end_of(_NUMBER, self._body, at)
        if end == at:
            raise _wrong("concurrency: Input should be a valid integer")
        value = _parsed(self._body[at:end], at)
        if value is not None:
            if type(value) is not int:
                raise _wrong("concurrency: Input should be a valid integer")
            if value < 1:
                raise _wrong("concurrency: Input should be greater than or equal to 1")
            if value > MOST_CONCURRENCY:
                raise _wrong(
                    f"concurrency: Input should be less than or equal to {MOST_CONCURRENCY}"
                )
        return value, end

    async def _object(self, at: int) -> int:
        """Return the end of the object or list that begins at `at`."""
        depth, window = 0, _FIRST_BYTES
        while at < len(self._body):
            found = _NO_OPEN_STRING.match(self._body, at, at + window)
            end = at if found is None else found.end()
            await self._did(end - at)
            if end == at:
                at = await self._text(at + 1)
                continue
            ends_after, depth = _depth_after(bytes(self._body[at:end]), depth)
            if ends_after:
                marks = _TO_MARK.finditer(self._body, at, end)
                return next(itertools.islice(marks, ends_after - 1, None)).end()
            at, window = end, min(2 * window, _WINDOW_BYTES)
        raise _wrong(_not_json(at))

    async def _text(self, at: int) -> int:
        """Return the end of the text whose quote is before `at`."""
        while True:
            end = _end_of(_TEXT, self._body, at)
            await self._did(end - at)
            if self._body[end : end + 1] == b'"' and end < at + _WINDOW_BYTES:
                return end + 1
            if end == at and end + 2 > len(self._body):
                raise _wrong(_not_json(len(self._body)))
            at = end

    async def _space(self, at: int) -> int:
        """Return where blanks that begin at `at` end."""
        while at < len(self._body) and self._body[at] in _BLANKS:
            end = _end_of(_SPACE, self._body, at)
            await self._did(end - at)
            at = end
        return at

    async def _did(self, size: int) -> None:
        """Count a search over `size` bytes; the loop has its turn after many."""
        self._looked_bytes += _CALL_BYTES + size
        if self._looked_bytes >= TURN_BYTES:
            self._looked_bytes = 0
            await asyncio.sleep(0)


def _depth_after(part: bytes, depth: int) -> tuple[int, int]:
    """Return at which bracket of a part the depth is 0, counted from 1, and the depth at its end.

    0: at none. No string of the part goes on after it.
    """
    marks = _STRINGS.sub(b"", part).translate(None, _NO_MARKS)
    depths = list(itertools.accumulate(array("b", marks.translate(_DEPTHS)), initial=depth))
    if 0 in depths[1:]:
        return depths.index(0, 1), 0
    return 0, depths[-1]


def _end_of(pattern: re.Pattern[bytes], body: bytes | bytearray, at: int) -> int:
    """Return the end of what matches at `at`, within a window."""
    found = pattern.match(body, at, at + _WINDOW_BYTES)
    return at if found is None else found.end()


def _parsed(text: bytes | bytearray, at: int) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        raise _wrong(_not_json(at)) from None
    return value


def _not_json(at: int) -> str:
    return f"body: Invalid JSON at byte {at}"


def _wrong(what: str) -> UsageError:
    return UsageError(f"body: {what}", remedy="see /docs for the fields")
