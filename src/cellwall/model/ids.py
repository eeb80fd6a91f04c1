"""Ids: 130 random bits in lower-case letters and digits, behind the name of a node if there is one.

No `-` or `_`: ids are used in host names. An id alone never gives access to anything.
"""

from __future__ import annotations

import os

from cellwall.model.errors import UsageError

_ALPHABET = b"abcdefghijklmnopqrstuvwxyz234567"
_LETTERS = _ALPHABET * 8
"""One letter for each value of a byte; 32 divides 256, so all letters are equally likely."""
_LENGTH = 26
NODE_LENGTH = 4
"""Number of letters of a node's name; 32 ** 4 names are enough for ever, and one is never used
again."""
NAMED_LENGTH = NODE_LENGTH + _LENGTH
"""Number of letters of an id that begins with the name of a node."""
AUTO = "auto"
"""What a setting says in the place of a name that is to be drawn; no node is called so."""
GATEWAYS = "gate"
"""What ids of programs begin with that gateways keep until a node has room; no node is called
so."""
_NO_NODES = frozenset({AUTO, GATEWAYS})


def new_id(node: str = "") -> str:
    """Return a fresh id; `node` is the name of the node whose object it is, where there is one."""
    return node + _drawn(_LENGTH)


def is_id(text: str, node: str = "") -> bool:
    """Report whether a text has the form of an id of that node, or of one without a node."""
    return len(text) == len(node) + _LENGTH and text.startswith(node) and _is_of_letters(text)


def accepted_id(offered: str, node: str) -> str:
    """Return an id that the object's maker did not draw itself; a fresh one for an empty text.

    Raises UsageError unless it is an id that begins with the name of `node`, which there must be,
    or of a program that gateways keep.
    """
    if not offered:
        return new_id(node)
    if not node or not (is_id(offered, node) or is_id(offered, GATEWAYS)):
        raise UsageError(
            f"id: {offered[:40]!r} is not one of this node's",
            remedy=f"offer the node's name and {_LENGTH} of the letters a to z and digits 2 to 7",
        )
    return offered


def new_node() -> str:
    """Return a fresh name of a node."""
    drawn = _drawn(NODE_LENGTH)
    return new_node() if drawn in _NO_NODES else drawn


def is_node(name: str) -> bool:
    """Report whether a text has the form of a name of a node."""
    return len(name) == NODE_LENGTH and _is_of_letters(name) and name not in _NO_NODES


def check_node(name: str) -> str:
    """Return a name of a node. Raises UsageError if it has not the form of one."""
    if not is_node(name):
        raise UsageError(
            f"node: {name[:32]!r} is not the name of a node",
            remedy=f"give {NODE_LENGTH} of the letters a to z and the digits 2 to 7",
        )
    return name


def node_of(text: str) -> str:
    """Return the name of the node that an id begins with; empty if it begins with none."""
    if len(text) != NAMED_LENGTH or not _is_of_letters(text):
        return ""
    return text[:NODE_LENGTH]


def is_of_another(text: str, node: str) -> bool:
    """Report whether an id is of a node that is not `node`; without a name no id is."""
    return node_of(text) not in {"", node} if node else False


def _drawn(length: int) -> str:
    return os.urandom(length).translate(_LETTERS).decode("ascii")


def _is_of_letters(text: str) -> bool:
    return text.isascii() and not text.encode().strip(_ALPHABET)
