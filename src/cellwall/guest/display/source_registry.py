"""Sources of caller code for tracebacks, files whose frames are hidden, and output to stderr.

Used by the modules that run caller code, and by `tracebacks.py`, which is loaded with the first
exception: most programs raise none. It imports nothing that a start would have to wait for.
"""

from __future__ import annotations

import os
import sys

from cellwall.guest.process.import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Entry = tuple[int, None, list[str], str]

_early: dict[str, Entry] = {}
"""Sources for `linecache`, until that module is imported."""


def remember(filename: str, source: str) -> None:
    """Make `source` what tracebacks and inspect show for `filename`, whatever is on disk."""
    # No mtime: linecache then never compares the entry with a file.
    entry = (len(source), None, lines_of(source), filename)
    linecache: Any = sys.modules.get("linecache")
    if linecache is not None:
        linecache.cache[filename] = entry
        return
    if not _early:
        after_import("linecache", _hand_over)
    _early[filename] = entry


def lines_of(source: str) -> list[str]:
    """Return the lines as Python counts them, each with its end; linecache ends the last one, too.

    `splitlines` would end lines at form feeds and a dozen other characters.
    """
    if "\r" in source:
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line + "\n" for line in source.split("\n")]
    if lines[-1] == "\n":
        del lines[-1]
    return lines


def _hand_over(linecache: Any) -> None:  # noqa: ANN401  the module
    linecache.cache.update(_early)


def hide_frames_of(folder: str) -> None:
    """Leave frames of code under `folder`, and cellwall's own, out of every later traceback."""
    hidden[1:] = [folder + os.sep]


def hide_only_our_frames() -> None:
    """Undo `hide_frames_of`: a program that uses IPython sees IPython's frames."""
    del hidden[1:]


def print_to_stderr(text: str) -> None:
    """Write to the caller's sys.stderr, or to descriptor 2 if that fails."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001  the caller may have closed or replaced it
        try:
            os.write(2, text.encode("utf-8", "backslashreplace"))
        except OSError:
            return


# Not __file__: inside a zipapp, or after a relocated compileall, code objects say otherwise.
_GUEST = os.path.dirname(os.path.dirname(remember.__code__.co_filename))
hidden = [_GUEST + os.sep]
"""Prefixes of file names whose frames are hidden; at first only that of the whole guest."""
