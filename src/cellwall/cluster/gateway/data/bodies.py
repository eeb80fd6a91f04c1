"""The name in a body by which a gateway finds, or chooses, the node of what is to be made.

A name is its tenant's own: a body that a node reads in another way misleads its own sender alone.
The invariant: a body is looked at once, however it comes in pieces.
"""

from __future__ import annotations

from cellwall.cluster.gateway.wire.json_body import object_of
from cellwall.model.errors import UsageError

_WINDOW_BYTES = 64 * 1024


def name_in(body: bytes, field: str = "name") -> str:
    """Return the name that a JSON object has. Raises UsageError."""
    try:
        name = object_of(body).get(field)
    except ValueError:
        raise UsageError("body: it is no JSON object", remedy="see /docs") from None
    if not isinstance(name, str):
        raise UsageError(f"body: its {field} is no text", remedy="see /docs")
    return name


class FirstPart:
    """Finds the first part of a form, of which more comes."""

    def __init__(self, media: str) -> None:
        """`media`: the type of the body. Raises HttpError if it is that of no form."""
        from cellwall.server.streaming.uploads import Form  # for builds with a context alone

        self._form = Form(media)
        self._taken = 0
        self._value = bytearray()

    def __call__(self, body: bytearray, is_whole: bool) -> bytes | None:
        """Return the part; None: it is not whole. Raises UsageError for what is no form."""
        while self._taken < len(body):
            piece = bytes(body[self._taken : self._taken + _WINDOW_BYTES])
            self._taken += len(piece)
            self._form.feed(piece)
            if self._has_all():
                return bytes(self._value)
        return None

    def _has_all(self) -> bool:
        """Take what has come of the part; report whether that is all."""
        pieces = self._form.parts[0].pieces if self._form.parts else None
        while pieces is not None and not pieces.empty():
            data = pieces.get_nowait()
            if data is None:
                return True
            self._value += data
        return False
