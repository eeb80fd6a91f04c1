"""Ids: 130 random bits in lower-case letters and digits.

No `-` or `_`: ids are used in host names. An id alone never gives access to anything.
"""

from __future__ import annotations

import os

_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567" * 8
"""One letter for each value of a byte; 32 divides 256, so all letters are equally likely."""
_LENGTH = 26


def new_id(prefix: str = "") -> str:
    """Return a fresh id; `prefix` is a short word such as a node's name."""
    return prefix + os.urandom(_LENGTH).translate(_LETTERS).decode("ascii")


def is_id(text: str) -> bool:
    """Report whether a text has the form of an id without a prefix."""
    return len(text) == _LENGTH and all(letter in _LETTERS for letter in text.encode())
