"""Text of the caller's as bytes. A str may hold halves of surrogate pairs, which no bytes are.

Not files' names inside, whose rules are `engine.programs.requests` and `client.files`.
"""

from __future__ import annotations

from cellwall.model.errors import UsageError


def utf8(text: str, what: str, *, escapes: bool = False) -> bytes:
    """Return `text` as UTF-8; `UsageError` that names `what` if it is no Unicode.

    `escapes`: what stands for single bytes becomes them, as where Python made text of a name or
    an argument that was none.
    """
    try:
        return text.encode("utf-8", "surrogateescape" if escapes else "strict")
    except UnicodeEncodeError:
        raise UsageError(
            f"{what}: it contains half a surrogate pair", remedy="send valid Unicode"
        ) from None
