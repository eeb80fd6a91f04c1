"""The accounts of a sandbox's root: passwd(5) and group(5).

`init/commands.py` looks users of commands up here. The files are a stranger's: they are read up to
a bound, without waiting, and what is odd in them is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.files.files import open_regular

_MOST_BYTES = 4 << 20
_IDS = 65_536
"""Number of user ids, and of group ids, that a sandbox has."""


class Account(NamedTuple):
    """A user, with what a process of it has."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def environment(self) -> Mapping[str, str]:
        """Return the variables that say who a process's user is, as login(1) sets them."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def account(word: str) -> Account:
    """Return the account that a word means: a name or number, and after a colon a group.

    The rules are those of `User` in the OCI image specification, `config.md`. Raises Refusal.
    """
    user, _, group = word.partition(":")
    numeric = _number(user)
    name, uid, gid, home = user, numeric, 0, "/"
    for line in _lines("/etc/passwd", 7):
        number, main = _number(line[2]), _number(line[3])
        if number is None or main is None or (line[0] != user and number != numeric):
            continue
        name, uid, gid, home = line[0], number, main, line[5] or "/"
        break
    if uid is None:
        raise Refusal("invalid", f"start: the sandbox has no user {user[:80]!r}")
    groups = tuple(_groups_of(name))
    if group:
        gid, groups = _group(group), ()
    return Account(name, uid, gid, groups, home)


def _lines(path: str, fields: int) -> Iterator[list[str]]:
    try:
        fd = open_regular(path, os.O_RDONLY)
    except (OSError, Refusal):
        return
    with open(fd, "rb") as file:
        for line in file.read(_MOST_BYTES).decode("utf-8", "replace").split("\n"):
            parts = line.split(":")
            if len(parts) == fields:
                yield parts


def _groups_of(name: str) -> Iterator[int]:
    for _, _, number, members in _lines("/etc/group", 4):
        gid = _number(number)
        if gid is not None and name in members.split(","):
            yield gid


def _group(word: str) -> int:
    for name, _, number, _ in _lines("/etc/group", 4):
        gid = _number(number)
        if name == word and gid is not None:
            return gid
    gid = _number(word)
    if gid is None:
        raise Refusal("invalid", f"start: the sandbox has no group {word[:80]!r}")
    return gid


def _number(text: str) -> int | None:
    is_id = text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < _IDS
    return int(text) if is_id else None
