"""Pages of lists: queries, and the token from which the next page goes on.

A token says where the last page ended, so that what is made or ended meanwhile moves nothing. The
invariant: a query that is unknown or cannot be read is refused by its name.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl

from cellwall.apps.doors.e2b.answers import refused

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

T = TypeVar("T")
Key = tuple[float, str]
_MOST = 100
_ALWAYS = ("limit", "nextToken", "order")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The page that a client wants."""

    limit: int = _MOST
    after: Key | None = None
    is_rising: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wanted:
        """Read it from a query."""
        limit, order = query.get("limit", str(_MOST)), query.get("order", "desc")
        is_number = limit.isascii() and limit.isdecimal() and len(limit) < 10
        if not (is_number and 0 < int(limit) <= _MOST):
            raise refused("limit", f"give a number from 1 to {_MOST}")
        if order not in {"asc", "desc"}:
            raise refused("order", "give asc or desc")
        token = query.get("nextToken")
        return cls(int(limit), None if token is None else _opened(token), order == "asc")


def query_of(request: Request, *known: str) -> dict[str, str]:
    """Return the query, each name once, repeated ones joined by commas."""
    raw: bytes = request.scope.get("query_string", b"")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64
        )
    except ValueError:
        raise refused("query", "it cannot be read") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known and name not in _ALWAYS:
            raise refused(name[:60], "this server does not have the filter")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def page(
    things: Sequence[T], key: Callable[[T], Key], wanted: Wanted
) -> tuple[list[T], dict[str, str]]:
    """Return the things of one page, and the header that leads to the next one."""
    ordered = sorted(things, key=key, reverse=not wanted.is_rising)
    if wanted.after is not None:
        after = wanted.after
        ordered = [
            each
            for each in ordered
            if (key(each) > after if wanted.is_rising else key(each) < after)
        ]
    part = ordered[: wanted.limit]
    if len(ordered) <= wanted.limit:
        return part, {}
    return part, {"x-next-token": _token(key(part[-1]))}


def _token(key: Key) -> str:
    return base64.urlsafe_b64encode(f"{key[0]!r}-{key[1]}".encode()).rstrip(b"=").decode()


def _opened(token: str) -> Key:
    try:
        text = base64.urlsafe_b64decode(token[:200] + "=" * (-len(token[:200]) % 4)).decode()
        at, _, name = text.partition("-")
        found = float(at)
    except (binascii.Error, ValueError):
        found, name = math.nan, ""
    if not name or not math.isfinite(found):
        raise refused("nextToken", "it is no token of this list")
    return found, name
