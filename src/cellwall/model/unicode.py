"""Unicode: a caller's text as bytes. A str may hold half surrogate pairs, which cannot be encoded.

The rules for file names inside are in `engine.programs.requests` and `client.files`.
"""

from __future__ import annotations

from cellwall.model.errors import UsageError


def utf8(text: str, what: str, *, escapes: bool = False) -> bytes:
    """Return `text` as UTF-8; `UsageError` that names `what` if it is not valid Unicode.

    `escapes`: surrogate escapes become the single bytes they stand for, as in a name or an argument
    that Python decoded from invalid UTF-8.
    """
    try:
        return text.encode("utf-8", "surrogateescape" if escapes else "strict")
    except UnicodeEncodeError:
        raise UsageError(
            f"{what}: it contains half a surrogate pair", remedy="send valid Unicode"
        ) from None
