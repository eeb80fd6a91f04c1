"""The frame of the guest channel: two lengths, a JSON header, raw bytes.

Used by init towards the host and towards its contexts (``init_link.py``). It is not a protocol:
which headers exist is decided by whoever reads them (``init/main.py``, ``contexts.py``, the host's
runtimes).

Lengths are checked before anything of that size is kept, and a decoder that raised once must be
thrown away with its peer: after a bad frame there is no way to find the beginning of the next.
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
"""Guest to host, and context to init: what a reader of hostile frames accepts as a header."""

MAX_EVENT_BODY_BYTES = 1024 * 1024
"""Guest to host: the reader may hold a thousand sandboxes, hence a thousand of these."""

MAX_REQUEST_HEADER_BYTES = 4 * 1024 * 1024
"""Host to guest: the header of ``execute`` carries the caller's arguments, so it may be large."""

MAX_REQUEST_BODY_BYTES = 32 * 1024 * 1024
"""Host to guest: the largest file written, or source executed, in one request."""


class FrameError(ValueError):
    """The peer broke the framing; whatever it says next cannot be understood."""


def _refuse_constant(name: str) -> None:
    # NaN and Infinity are not JSON: whoever reads what we pass on may not know them.
    raise FrameError(f"frame header: {name} is not JSON")


_parse = strict_json.parser(_refuse_constant)
_dump = strict_json.dump


def encode(header: Header, body: Buffer = b"") -> bytes:
    """One frame as bytes. Raises ValueError when the header cannot be written as strict JSON."""
    text = _dump(header).encode("ascii")
    return b"".join((LENGTHS.pack(len(text), len(body)), text, body))


def parse_header(raw: Buffer) -> Header:
    """The header's JSON object; anything else is a FrameError."""
    try:
        header = _parse(str(raw, "utf-8"))
    except (ValueError, RecursionError) as error:
        # RecursionError: ten thousand opening brackets fit a header easily.
        raise FrameError(f"frame header: not a JSON object ({type(error).__name__})") from None
    if not isinstance(header, dict):
        raise FrameError("frame header: not a JSON object")
    return header


class Decoder:
    """Bytes in, whole frames out; holds at most one frame plus what one read brought with it."""

    def __init__(
        self,
        max_header: int = MAX_EVENT_HEADER_BYTES,
        max_body: int = MAX_EVENT_BODY_BYTES,
    ) -> None:
        """The caps are the reader's to state; the defaults are for hostile peers."""
        self._max_header = max_header
        self._max_body = max_body
        self._buffer = bytearray()
        self._needed = LENGTHS.size
        self._is_broken = False

    @property
    def is_idle(self) -> bool:
        """True between frames: an end of stream here cuts nothing off."""
        return not self._buffer

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Take bytes and yield the frames they complete. Raises FrameError, and then for ever."""
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
        """The frame at the front; None, with `_needed` moved on, while it is incomplete."""
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
