"""Files that a program gets beside its own, so that it finds its arguments and leaves a result.

Each is in the language it is for, and runs inside; nothing here is imported but `text`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def text(name: str) -> bytes:
    """Return the file of that name, which is read once."""
    return Path(__file__).with_name(name).read_bytes()
