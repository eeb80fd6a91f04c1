"""Something done at one step of the engine's own code: before each line of modules that are named.

Not a test. A step is a line of ours that is about to run in the engine's process, in any thread,
counted from the beginning of an operation. What happens inside of sandboxes happens while the
engine waits between two lines; a deed that takes its time first reaches into that.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

MODULES = (
    "engine/state/copies.py",
    "engine/state/durable.py",
    "engine/state/hibernation.py",
    "engine/state/snapshot_files.py",
    "engine/state/stored_image.py",
    "engine/parts/pausing.py",
    "runtimes/jail/copying.py",
    "runtimes/jail/sandbox.py",
    "linux/cgroups/freezer.py",
    "linux/cgroups/sandbox_groups.py",
)
"""The engine's part of forks, snapshots, restores and pauses, by the ends of paths."""
MOST = int(os.environ.get("CELLWALL_TEST_STEPS", "4"))
"""Most steps of one operation at which something is done; 100000 is each of them."""


class Steps:
    """Counts lines while it is armed, and does something before one of them."""

    def __init__(self) -> None:
        """Threads that exist before this are not seen, so it comes before an engine."""
        self._at = 0
        self._deed: Callable[[], None] | None = None
        self._is_armed = False
        self.count = 0
        self.has_done = False
        sys.settrace(self._enter_frame)
        threading.settrace(self._enter_frame)

    @contextmanager
    def armed(self, at: int = 0, deed: Callable[[], None] | None = None) -> Iterator[None]:
        """Count the lines of a block; do `deed` before line `at`, the first being 1."""
        self._at, self._deed, self.count, self.has_done = at, deed, 0, False
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def close(self) -> None:
        """Count nothing any more."""
        sys.settrace(None)
        threading.settrace(None)

    def _enter_frame(self, frame: FrameType, event: str, _argument: Any) -> Any:
        is_ours = self._is_armed and frame.f_code.co_filename.endswith(MODULES)
        return self._in_frame if is_ours and event == "call" else None

    def _in_frame(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and self._is_armed:
            self.count += 1
            if self.count == self._at and self._deed is not None:
                self.has_done = True
                self._deed()
        return self._in_frame


def chosen(count: int, most: int = MOST) -> range:
    """Return at most so many steps of `count`, evenly over the whole."""
    return range(1, count + 1, max(1, -(-count // most)))
