"""MIME bundles as bodies of `display` events: text, bounded, with a note on omitted parts.

Used by `display.py`, which loads it with the first display. It imports everything it needs at once:
the caller may have a `json.py` of its own (`own_modules.py`).
"""

from __future__ import annotations

import base64
import json

from cellwall.guest.channel.outbox import MAX_BODY_BYTES
from cellwall.guest.display.display import MOST_PLAIN, cut_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_METADATA_BYTES = 2 * 1024
"""Maximum bytes of metadata; the host accepts a context's header of at most 4 KiB."""
_PLAIN, _HTML = "text/plain", "text/html"


def fit(bundle: dict[str, Any]) -> tuple[bytes, int]:
    """Return a bundle as a body that fits a frame, and how many bytes were lost for it.

    HTML beside a form that arrives whole is no loss: it shows the same once more, with its library.
    """
    texts = {}
    for mime, form in bundle.items():
        text = _text_of(form)
        if text is not None:
            texts[mime] = cut_plain(text) if mime == _PLAIN else text
    body = encoded(texts)
    if len(body) > MAX_BODY_BYTES and _HTML in texts and _is_whole_without_html(texts):
        del texts[_HTML]
        body = encoded(texts)
    lost = 0
    while len(body) > MAX_BODY_BYTES and len(texts) > (_PLAIN in texts):
        largest = max((m for m in texts if m != _PLAIN), key=lambda m: len(texts[m]))
        size = len(texts.pop(largest))
        lost += size
        note = f"[{largest} of {size} bytes dropped: the limit is {MAX_BODY_BYTES}]"
        texts[_PLAIN] = f"{texts.get(_PLAIN, '')[:MOST_PLAIN]}\n{note}".lstrip("\n")
        body = encoded(texts)
    if len(body) > MAX_BODY_BYTES:
        # Control characters take six bytes each in JSON.
        lost += len(body)
        body = encoded({_PLAIN: texts[_PLAIN][: MAX_BODY_BYTES // 8]})
    return body, lost


def _is_whole_without_html(texts: dict[str, str]) -> bool:
    rest = {mime: text for mime, text in texts.items() if mime != _HTML}
    return any(_is_richer(mime) for mime in rest) and len(encoded(rest)) <= MAX_BODY_BYTES


def _is_richer(mime: str) -> bool:
    """Return whether a form is a picture, or a chart in its library's own format."""
    return mime.startswith(("image/", "application/vnd."))


def encoded(texts: dict[str, str]) -> bytes:
    """Return the body of a bundle of texts."""
    return json.dumps(texts, ensure_ascii=False).encode("utf-8", "backslashreplace")


def plain_of(body: bytes) -> str | None:
    """Return the plain text in a body."""
    text: str | None = json.loads(body).get(_PLAIN)
    return text


def bounded(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Return the metadata, or none of it if it is not JSON or too large for a header."""
    if not metadata:
        return {}
    try:
        size = len(json.dumps(metadata, allow_nan=False))
    except Exception:  # noqa: BLE001  not JSON
        return {}
    return metadata if size <= _MOST_METADATA_BYTES else {}


def _text_of(form: Any) -> str | None:  # noqa: ANN401  whatever the caller returned
    try:
        if isinstance(form, (bytes, bytearray)):
            return base64.b64encode(form).decode("ascii")
        if isinstance(form, str):
            return str(form)
        return json.dumps(form, allow_nan=False)
    except Exception:  # noqa: BLE001  not JSON: this one form is left out
        return None
