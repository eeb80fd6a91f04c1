"""Measurements of single steps, without the collector's share.

A test process has the objects of thousands of tests before this one, and a full collection of them
takes longer than what these tests bound.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collections_off() -> Iterator[None]:
    """Collect now, and not before the end."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
