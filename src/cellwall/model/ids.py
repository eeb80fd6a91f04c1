"""Ids: 128 random bits in lower-case letters and digits.

No `-` or `_`: ids stand in host names. An id alone is never enough to reach anything.
"""

from __future__ import annotations

import base64
import os


def new_id(prefix: str = "") -> str:
    """Return a fresh id; `prefix` is a short word such as a node's name."""
    return prefix + base64.b32encode(os.urandom(16)).decode("ascii").rstrip("=").lower()
