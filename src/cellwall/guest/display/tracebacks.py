"""Tracebacks as Python would print them, with the caller's source, without cellwall's frames.

Used by `program.py` and `cell.py`. It is not IPython's coloured report, and it does not decide
whether an exception is an error.

CPython's own printer reads source from disk, and the caller's code is never there: all code that
runs has to be registered here first, or its tracebacks lose their lines.
"""

from __future__ import annotations

import contextlib
import linecache  # noqa: F401  it holds what `source_registry` was told
import sys
import tokenize
import traceback
from typing import TYPE_CHECKING, NamedTuple

from cellwall.guest.display.source_registry import hidden, print_to_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

_MOST_TEXT = 50_000
"""Maximum characters of a field of an error event: two of six bytes each fit a 1 MiB frame."""


class ErrorReport(NamedTuple):
    """One exception in three bounded fields."""

    name: str
    value: str
    traceback: str


def text_of(error: BaseException) -> str:
    """Return the complete traceback of `error`, as `python file.py` would print it."""
    try:
        tb = _callers_part(error.__traceback__)
        with _own_tokenize():
            report = traceback.TracebackException(type(error), error, tb)
            _hide(report, tuple(hidden), set())
            lines = list(report.format())
        if tb is None and lines and lines[0].startswith("Traceback "):
            del lines[0]
        return "".join(lines)
    except (MemoryError, RecursionError):
        return f"{type(error).__name__}\n"


@contextlib.contextmanager
def _own_tokenize() -> Iterator[None]:
    """Have `linecache` find the library's `tokenize`, not a module of the caller's.

    Since Python 3.13 it imports that module while it works.
    """
    theirs = sys.modules.get("tokenize")
    sys.modules["tokenize"] = tokenize
    try:
        yield
    finally:
        if theirs is None:
            del sys.modules["tokenize"]
        else:
            sys.modules["tokenize"] = theirs


def report_of(error: BaseException, text: str | None = None) -> ErrorReport:
    """Return the three fields of an error event."""
    try:
        value = str(error)
    except Exception:  # noqa: BLE001  the caller's __str__ may do anything
        value = "<exception str() failed>"
    text = text_of(error) if text is None else text
    return ErrorReport(type(error).__name__[:200], _cut(value), _cut(text))


def report_uncaught(error: BaseException) -> str:
    """Print an uncaught exception, through sys.excepthook if that was replaced; return its text."""
    text = text_of(error)
    hook = sys.excepthook
    if hook is sys.__excepthook__:
        print_to_stderr(text)
        return text
    try:
        hook(type(error), error, _callers_part(error.__traceback__))
    except BaseException as second:  # noqa: BLE001  the hook is caller code
        failure = f"Error in sys.excepthook:\n{text_of(second)}\nOriginal exception was:\n{text}"
        print_to_stderr(failure)
    return text


def report_thread(args: Any) -> None:  # noqa: ANN401  threading.ExceptHookArgs, absent from 3.8
    """Replace threading.excepthook: CPython's own would not find the caller's lines."""
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "?"
    print_to_stderr(f"Exception in thread {name}:\n{text_of(args.exc_value)}")


def _callers_part(tb: TracebackType | None) -> TracebackType | None:
    prefixes = tuple(hidden)
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(prefixes):
        tb = tb.tb_next
    return tb


def _hide(report: traceback.TracebackException, prefixes: tuple[str, ...], seen: set[int]) -> None:
    if id(report) in seen:
        return
    seen.add(id(report))
    if report.stack:
        report.stack[:] = [f for f in report.stack if not f.filename.startswith(prefixes)]
    others = [report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())]
    for other in others:
        if other is not None:
            _hide(other, prefixes, seen)


def _cut(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
