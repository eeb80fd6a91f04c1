"""The frame of the guest channel: two lengths, a JSON header, raw bytes.

Used by init towards the host and towards its contexts (``init_link.py``). It is not a protocol: the
reader (``init/main.py``, ``contexts.py``, the host's runtimes) decides which headers exist.

Lengths are checked before anything of that size is kept. A decoder that raised once must be thrown
away with its peer: after a bad frame the beginning of the next cannot be found.
"""

from __future__ import annotations

import struct

from cellwall.guest.channel import strict_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Dict, Tuple, Union

    Header = Dict[str, Any]
    Frame = Tuple[Header, bytes]
    Buffer = Union[bytes, bytearray, memoryview]
else:  # `typing` costs a cold start more than everything else here
    Header, Frame, Buffer = dict, tuple, bytes

LENGTHS = struct.Struct(">II")

MAX_EVENT_HEADER_BYTES = 64 * 1024
"""Maximum bytes of a header from guest to host or context to init; these may be hostile."""

MAX_EVENT_BODY_BYTES = 1024 * 1024
"""Maximum bytes of a body from guest to host; a reader may have to hold a thousand of these."""

MAX_REQUEST_HEADER_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a header from host to guest; that of ``execute`` carries call arguments."""

MAX_REQUEST_BODY_BYTES = 32 * 1024 * 1024
"""Maximum bytes of a body from host to guest: the largest file or source in one request."""


class FrameError(ValueError):
    """The peer broke the framing; its further bytes cannot be understood."""


def _refuse_constant(name: str) -> None:
    # NaN and Infinity are not JSON: a later reader of the header may not know them.
    raise FrameError(f"frame header: {name} is not JSON")


_parse = strict_json.parser(_refuse_constant)
_dump = strict_json.dump


def encode(header: Header, body: Buffer = b"") -> bytes:
    """Return one frame as bytes. Raises ValueError for a header that strict JSON cannot express."""
    text = _dump(header).encode("ascii")
    return b"".join((LENGTHS.pack(len(text), len(body)), text, body))


def parse_header(raw: Buffer) -> Header:
    """Return the header's JSON object; anything else is a FrameError."""
    try:
        header = _parse(str(raw, "utf-8"))
    except (ValueError, RecursionError) as error:
        # RecursionError: ten thousand opening brackets fit a header easily.
        raise FrameError(f"frame header: not a JSON object ({type(error).__name__})") from None
    if not isinstance(header, dict):
        raise FrameError("frame header: not a JSON object")
    return header


class Decoder:
    """Turns bytes into whole frames; holds at most one frame plus the rest of one read."""

    def __init__(
        self,
        max_header: int = MAX_EVENT_HEADER_BYTES,
        max_body: int = MAX_EVENT_BODY_BYTES,
    ) -> None:
        """The reader states the limits, in bytes; the defaults are for hostile peers."""
        self._max_header = max_header
        self._max_body = max_body
        self._buffer = bytearray()
        self._needed = LENGTHS.size
        self._is_broken = False

    @property
    def is_idle(self) -> bool:
        """Whether the decoder is between frames, so that an end of stream cuts nothing off."""
        return not self._buffer

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Take bytes and yield the frames they complete. A FrameError repeats at later calls."""
        if self._is_broken:
            raise FrameError("frame decoder: used after an error; close the connection")
        self._buffer += data
        while len(self._buffer) >= self._needed:
            try:
                frame = self._take()
            except FrameError:
                self._is_broken = True
                self._buffer.clear()
                raise
            if frame is not None:
                yield frame

    def _take(self) -> Frame | None:
        """Return the first frame; None while it is incomplete, with `_needed` set to its size."""
        buffer = self._buffer
        header_length, body_length = LENGTHS.unpack_from(buffer)
        if header_length > self._max_header:
            raise FrameError(f"frame header: {header_length} bytes, limit {self._max_header}")
        if body_length > self._max_body:
            raise FrameError(f"frame body: {body_length} bytes, limit {self._max_body}")
        body_start = LENGTHS.size + header_length
        self._needed = body_start + body_length
        if len(buffer) < self._needed:
            return None
        header = parse_header(buffer[LENGTHS.size : body_start])
        body = bytes(memoryview(buffer)[body_start : self._needed])
        del buffer[: self._needed]
        self._needed = LENGTHS.size
        return header, body
