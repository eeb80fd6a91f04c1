"""Users: whom a client names, whether the sandbox has them, and where their paths begin.

The accounts of an image are read from its own files, and are hostile text: they decide nothing but
names and paths inside that sandbox.
"""

from __future__ import annotations

import base64
import contextlib
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid
from cellwall.client.connection.transport import Ask
from cellwall.model.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.apps.doors.e2b.seat import Seat

USER, USER_ID, HOME = "user", 1000, "/home/user"
"""The one user of a sandbox that is not on an image."""
_NAMES = {0: "root", USER_ID: USER, 65_534: "nobody"}
"""Names of the users and of the groups of such a sandbox."""
_MOST_BYTES = 128 * 1024
"""Bytes of a passwd(5) or group(5) that are read: each line costs a microsecond or two."""
_USER_FIELDS, _GROUP_FIELDS = 7, 4
_DIGITS = 5
"""Digits of a user id: a sandbox has 65,536."""
_MOST_PATH = 4096


@dataclass(frozen=True, slots=True)
class Account:
    """A user of one sandbox."""

    name: str
    uid: int
    gid: int
    home: str
    is_own: bool
    """Whether it is the sandbox's own, whose rights its files and commands have by default."""

    @property
    def wanted(self) -> str | None:
        """Value of `user` for a command; None for the sandbox's own."""
        return None if self.is_own else str(self.uid)

    def path(self, given: str) -> str:
        """Return an absolute path: `~` and relative ones begin at the home. Raises ConnectError."""
        if "\0" in given or len(given) > _MOST_PATH:
            raise invalid("path: too long, or with a NUL character")
        if given == "~" or given.startswith("~/"):
            given = f"{self.home}/{given[2:]}"
        elif given.startswith("~"):
            raise invalid("path: only one's own home can be meant by ~")
        return posixpath.normpath("/" + posixpath.join(self.home, given).lstrip("/"))


def named(headers: Mapping[str, str]) -> str | None:
    """Return the user that a call's `Authorization: Basic` names; None: the default."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(given.strip(), validate=True).decode()
    except ValueError:
        raise ConnectError("unauthenticated", "authorization: it cannot be read") from None
    return text.rpartition(":")[0] or text or None


class Users:
    """The users of one sandbox."""

    def __init__(
        self, own: str | None, passwd: str = "", group: str = "", default: str | None = None
    ) -> None:
        """`own` is the sandbox's own user; None for one that is not on an image.

        `default`: who is meant where none is named; None: the sandbox's own.
        """
        self._own = own
        self._default = default
        if own is None:
            self._known = [Account(USER, USER_ID, USER_ID, HOME, is_own=True)]
            self._users = self._groups = _NAMES
            return
        self._known = list(_accounts(passwd, own))
        self._users = {each.uid: each.name for each in reversed(self._known)}
        self._groups = dict(_groups(group))

    def account(self, given: str | None) -> Account:
        """Return the account of a user by name or number; without one, the default.

        Raises ConnectError.
        """
        word = (given or "").removesuffix(":") or self._default or ""
        for each in self._known:
            if each.is_own if not word else word in (each.name, str(each.uid)):
                found = each
                break
        else:
            found = self._nameless(word)
        if not found.is_own and self._own not in ("root", "0"):
            raise _unknown(
                word, f"the sandbox's user is {self._own!r}, and only root may be others"
            )
        return found

    def _nameless(self, word: str) -> Account:
        if self._own is None:
            raise _unknown(word, "this sandbox has only 'user'; root needs a template on an image")
        if _is_id(word):
            return Account(word, int(word), 0, "/", is_own=False)
        raise _unknown(word, "the image has no such user")

    def user(self, uid: int | None) -> str:
        """Return the name of a user id, or the number."""
        return "" if uid is None else self._users.get(uid, str(uid))

    def group(self, gid: int | None) -> str:
        """Return the name of a group id, or the number."""
        return "" if gid is None else self._groups.get(gid, str(gid))


async def users(seat: Seat) -> Users:
    """Return the users and groups of a sandbox."""
    own = seat.sandbox.facts.get("user")
    if own is None:
        return Users(None)
    passwd, group = await _text(seat, "/etc/passwd"), await _text(seat, "/etc/group")
    return Users(str(own), passwd, group, seat.facts.user)


async def account(seat: Seat, given: str | None) -> Account:
    """Return the account of a user, as `Users.account`; groups are not read for it."""
    own = seat.sandbox.facts.get("user")
    if own is None:
        return Users(None).account(given)
    passwd = await _text(seat, "/etc/passwd")
    return Users(str(own), passwd, default=seat.facts.user).account(given)


def _unknown(word: str, why: str) -> ConnectError:
    return ConnectError("unauthenticated", f"invalid username: {word[:80]!r} ({why})")


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS


async def _text(seat: Seat, path: str) -> str:
    data = bytearray()
    try:
        ask = Ask("GET", "/files", {"path": path})
        async with contextlib.aclosing(seat.live.pieces(ask)) as pieces:
            async for piece in pieces:
                data += piece
                if len(data) > _MOST_BYTES:
                    break
    except FileError:
        return ""
    return data[:_MOST_BYTES].decode("utf-8", "replace")


def _accounts(passwd: str, own: str) -> Iterator[Account]:
    """Yield the accounts of a passwd(5); the sandbox's own is one of them, also without a line."""
    is_there = False
    for line in passwd.split("\n"):
        parts = line.split(":")
        if len(parts) != _USER_FIELDS or not (_is_id(parts[2]) and _is_id(parts[3])):
            continue
        is_own = own in (parts[0], parts[2])
        is_there = is_there or is_own
        home = parts[5] if parts[5].startswith("/") else "/"
        yield Account(parts[0], int(parts[2]), int(parts[3]), home, is_own)
    if not is_there:
        yield Account(own, int(own) if _is_id(own) else 0, 0, "/", is_own=True)


def _groups(group: str) -> Iterator[tuple[int, str]]:
    """Yield the groups of a group(5)."""
    for line in group.split("\n"):
        parts = line.split(":")
        if len(parts) == _GROUP_FIELDS and _is_id(parts[2]):
            yield int(parts[2]), parts[0]
