"""Ids: 128 random bits in lower-case letters and digits.

No `-` or `_`: ids stand in host names. An id alone is never enough to reach anything.
"""

from __future__ import annotations

import secrets

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_LENGTH = 26  # 36**26 > 2**128


def new_id(prefix: str = "") -> str:
    """Return a fresh id; `prefix` is a short word such as a node's name."""
    value = secrets.randbits(128)
    digits = []
    for _ in range(_LENGTH):
        value, digit = divmod(value, 36)
        digits.append(_ALPHABET[digit])
    return prefix + "".join(digits)
