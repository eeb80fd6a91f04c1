"""Connect protocol: content types, envelopes, error codes and timeouts, without any transport.

`calls` serves with it. The invariant: a message is at most as long as its reader allows, whatever
length a client announces, and every other byte string is refused by a code of the protocol.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from cellwall.apps.doors.e2b.daemon.connect import binary_form, json_form
from cellwall.apps.doors.e2b.daemon.connect.schema import Malformed, Message, Value

STATUS: Mapping[str, int] = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}
"""HTTP status of a unary answer for each code."""
_HEAD_BYTES = 5
_COMPRESSED, _END = 0x01, 0x02
_MOST_DIGITS = 10
_DAY_S = 86_400.0


class ConnectError(Exception):
    """An error in the protocol's words."""

    def __init__(self, code: str, message: str) -> None:
        """`code` is one of `STATUS`."""
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """HTTP status of a unary answer."""
        return STATUS[self.code]

    def as_json(self) -> dict[str, str]:
        """Return the error's object."""
        return {"code": self.code, "message": self.message}


def invalid(message: str) -> ConnectError:
    """Return the error for a request that can never succeed unchanged."""
    return ConnectError("invalid_argument", message)


@dataclass(frozen=True, slots=True)
class Codec:
    """One form of messages on the wire."""

    media: str
    """Content type of requests and answers, exactly."""
    is_stream: bool
    is_binary: bool

    def decode(self, message: Message, data: bytes) -> Value:
        """Return a message. Raises ConnectError."""
        try:
            if self.is_binary:
                return binary_form.decoded(message, data)
            return json_form.decoded(message, data)
        except Malformed as error:
            raise invalid(str(error)) from None

    def encode(self, message: Message, value: Value) -> bytes:
        """Return the bytes of a message."""
        if self.is_binary:
            return binary_form.encoded(message, value)
        return json_form.encoded(message, value)


JSON = Codec("application/json", is_stream=False, is_binary=False)
_CODECS = {
    each.media: each
    for each in (
        JSON,
        Codec("application/proto", is_stream=False, is_binary=True),
        Codec("application/connect+json", is_stream=True, is_binary=False),
        Codec("application/connect+proto", is_stream=True, is_binary=True),
    )
}


def codec_of(content_type: str, *, is_stream: bool) -> Codec | None:
    """Return the codec of a request; None: the method does not take that type (HTTP 415)."""
    media, _, parameters = content_type.partition(";")
    charset = parameters.replace(" ", "").lower()
    found = _CODECS.get(media.strip().lower())
    if found is None or found.is_stream != is_stream or charset not in ("", "charset=utf-8"):
        return None
    return found


def taken(is_stream: bool) -> str:
    """Return the content types of such a method, for the header `Accept-Post`."""
    return ", ".join(each.media for each in _CODECS.values() if each.is_stream == is_stream)


def refused_encoding(headers: Mapping[str, str], *, is_stream: bool) -> ConnectError | None:
    """Return the error for a compressed request, which none of the clients sends."""
    name = "connect-content-encoding" if is_stream else "content-encoding"
    given = headers.get(name, "identity").strip().lower()
    if given in ("", "identity"):
        return None
    return ConnectError("unimplemented", f"{name} {given[:40]!r}: only identity is supported")


def timeout_s(headers: Mapping[str, str]) -> float | None:
    """Return the request's time limit in seconds; None: there is none. Raises ConnectError."""
    given = headers.get("connect-timeout-ms", "").strip()
    if not given:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= _MOST_DIGITS):
        raise invalid(f"connect-timeout-ms: {given[:40]!r} is no number of milliseconds")
    return int(given) / 1000 or None


def keepalive_s(headers: Mapping[str, str], default_s: float = 90.0) -> float:
    """Return after how many quiet seconds a stream shows that it is alive."""
    given = headers.get("keepalive-ping-interval", "").strip()
    if given.isascii() and given.isdecimal() and len(given) <= _MOST_DIGITS and int(given):
        return min(float(given), _DAY_S)
    return default_s


# -- envelopes ---------------------------------------------------------------------------------


def envelope(data: bytes) -> bytes:
    """Return a message of a stream."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def end_of_stream(error: ConnectError | None = None) -> bytes:
    """Return the last envelope of an answer, which is JSON in every codec."""
    data = json.dumps({} if error is None else {"error": error.as_json()}).encode("ascii")
    return bytes([_END]) + len(data).to_bytes(4, "big") + data


async def messages(
    pieces: AsyncIterator[bytes],
    most_bytes: int,
    on_held: Callable[[int], object] = lambda _: None,
) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a request's stream; `on_held` learns how many bytes wait for their
    rest. Raises ConnectError.
    """
    buffer = bytearray()
    is_over = False
    async for piece in pieces:
        if is_over and piece:
            raise invalid("stream: bytes after its last envelope")
        buffer += piece
        on_held(len(buffer))
        while (size := _whole(buffer, most_bytes)) is not None:
            flags, data = buffer[0], bytes(buffer[_HEAD_BYTES:size])
            del buffer[:size]
            if flags & _END:
                is_over = True
                if buffer:
                    raise invalid("stream: bytes after its last envelope")
            else:
                yield data
    if buffer:
        raise invalid("stream: it ends within an envelope")


def _whole(buffer: bytearray, most_bytes: int) -> int | None:
    """Return the size of the first envelope, or None while it is not there."""
    if not buffer:
        return None
    if buffer[0] & _COMPRESSED:
        raise ConnectError("unimplemented", "envelope: compressed messages are not taken")
    if buffer[0] & ~_END:
        raise invalid(f"envelope: flags {buffer[0]:#04x} are not known")
    if len(buffer) < _HEAD_BYTES:
        return None
    size = int.from_bytes(buffer[1:_HEAD_BYTES], "big")
    if size > most_bytes:
        raise ConnectError(
            "resource_exhausted", f"envelope: {size} bytes announced, {most_bytes} are the most"
        )
    return None if len(buffer) < _HEAD_BYTES + size else _HEAD_BYTES + size
