"""Tokens of Judge0's submissions: UUIDs of version 4 that begin with the name of their node.

The name is in the first 20 bits; a server that is no node has none there.

Clients may check that form. A token alone opens nothing: its tenant does.
"""

from __future__ import annotations

import re
import uuid

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_BITS = 5
_DIGITS = 5
"""Hexadecimal digits of a name: four letters of five bits."""
_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_token(node: str = "") -> str:
    """Return a fresh token of a node, or of a server alone."""
    drawn = str(uuid.uuid4())
    if not node:
        return drawn
    number = 0
    for letter in node:
        number = number << _BITS | _ALPHABET.index(letter)
    return f"{number:0{_DIGITS}x}{drawn[_DIGITS:]}"


def node_of(token: str) -> str:
    """Return the name with which a token begins; empty if it is no token."""
    if not _FORM.fullmatch(token):
        return ""
    number = int(token[:_DIGITS], 16)
    return "".join(_ALPHABET[number >> shift & 31] for shift in (15, 10, 5, 0))
