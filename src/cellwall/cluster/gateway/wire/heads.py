"""Heads of HTTP/1.1 messages: what a gateway reads of them, and how it writes them anew.

Pure; `front` and `node_link` parse, `exchange` decides. The invariant: a head that goes on was
written here, with exactly one framing, so neither side can read one message as two; and nothing
that a client said about who it is goes on as the gateway's own word.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from cellwall.server.http.cross_origin import told

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, with their values, in order."""

_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
     b"upgrade", b"content-length", b"expect", b"proxy-authorization", b"proxy-authenticate"}
)  # fmt: skip
"""Headers of one connection (RFC 9110, 7.6.1), and those that frame a body, which are made anew."""
_BARE = frozenset({204, 304})
"""Answers that have no body, and say no length."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Has a client send its body that waits to be asked for it."""
OURS = b"cellwall-"
"""Beginning of the headers that a gateway alone says to a node."""
_OURS_BYTES = len(OURS)
_COLON = b": "


@dataclass(slots=True)
class RequestHead:
    """The head of a request, as a client sent it."""

    method: bytes
    target: bytes
    headers: Headers
    upgrade: bytes = b""
    """Protocol that the client would switch to, in lower case; empty: it stays HTTP."""
    length: int | None = 0
    """Bytes of its body; None: it comes in chunks."""
    named: dict[bytes, bytes] = field(default_factory=dict, repr=False)
    """The last value of each header."""
    kind: str = ""
    """What it is counted as: the kind of its way, or `door`."""
    door: str = ""
    """Name of the door at which it came; empty: at none."""
    door_path: str = ""
    """Its path in the door."""
    key_id: str = ""
    """Id of the key by which the door let it in; empty: of none."""
    page: bytes = b""
    """Origin of the page that sent it, if the operator lists that; empty: it does not, or none."""
    has_begun: bool = False
    """Whether the gateway itself does what it asks for, which goes to its end."""

    @property
    def path(self) -> str:
        """The path, as it was sent, without the query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def is_preflight(self) -> bool:
        """Whether a browser asks if a listed page may send a request."""
        asks = self.method == b"OPTIONS" and b"access-control-request-method" in self.named
        return asks and self.page != b""

    def first(self, name: bytes) -> str:
        """Return a header's value; empty if it is not there."""
        return self.named.get(name, b"").decode("latin-1")


@dataclass(slots=True)
class ResponseHead:
    """The head of a node's answer."""

    status: int
    headers: Headers
    length: int | None
    """Bytes of its body; None: they are not known before its end."""

    def first(self, name: bytes) -> str:
        """Return a header's value; empty if it is not there."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


class Shaped(NamedTuple):
    """What a client is answered here: a refusal in its protocol's shape, or JSON."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str]


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the bytes of a body by its headers; None: they are not said.

    The parser has refused what is no number, and both framings at once.
    """
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return None


def request_bytes(head: RequestHead, said: Headers, dropped: frozenset[bytes]) -> bytes:
    """Return the head for a node: the client's headers but `dropped`, then what is `said`."""
    lines = [b"%s %s HTTP/1.1" % (head.method, head.target)]
    lines += [
        _COLON.join(each)
        for each in head.headers
        if each[0] not in _HOP and each[0] not in dropped and each[0][:_OURS_BYTES] != OURS
    ]
    lines += map(_COLON.join, said)
    if head.upgrade:
        lines.append(b"connection: upgrade\r\nupgrade: %s" % head.upgrade)
    return b"%s\r\n%s\r\n" % (b"\r\n".join(lines), _framing(head.length))


def response_bytes(
    head: ResponseHead, *, is_kept: bool, framing: bytes, page: bytes = b""
) -> bytes:
    """Return the head for a client; `framing`: what `framing_for` returned.

    A `page` of that origin is permitted to read the answer; empty: none is.
    """
    headers = told(page, head.headers) if page else head.headers
    lines = [_COLON.join(each) for each in headers if each[0] not in _HOP]
    lines.append(framing if is_kept else framing + b"connection: close\r\n")
    return _status_line(head.status) + b"\r\n".join(lines) + b"\r\n"


def switching_bytes(head: ResponseHead) -> bytes:
    """Return the head of an answer that switches protocols, for a client."""
    lines = [_status_line(head.status)]
    lines += [b"%s: %s\r\n" % each for each in head.headers if each[0] not in _HOP]
    upgrade = head.first(b"upgrade").encode("latin-1")
    lines.append(b"connection: upgrade\r\nupgrade: %s\r\n\r\n" % upgrade)
    return b"".join(lines)


def framing_for(length: int | None, *, has_chunks: bool, status: int = 200) -> bytes:
    """Return the header that frames a body; empty: the connection's end does, or there is none."""
    if status in _BARE:
        return b""
    if length is not None:
        return b"content-length: %d\r\n" % length
    return b"transfer-encoding: chunked\r\n" if has_chunks else b""


def chunk(data: bytes) -> bytes:
    """Return a piece of a body as one chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def _framing(length: int | None) -> bytes:
    if length is None:
        return b"transfer-encoding: chunked\r\n"
    return b"content-length: %d\r\n" % length if length else b""


@functools.cache
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase.encode()
    except ValueError:
        phrase = b"Unknown"
    return b"HTTP/1.1 %d %s\r\n" % (status, phrase)
