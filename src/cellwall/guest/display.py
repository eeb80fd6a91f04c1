"""What the caller shows: objects to MIME bundles, bundles to bounded `display` events.

Used by programs and cells alike; IPython's formatters, where a cell has them, only replace the
first half. It does not draw figures (`figures.py`) and does not capture stdout.

A bundle larger than a frame would end the sandbox, so `fit` is the only way to a body; and the
order in which things appear is only right because stdout is flushed before anything is shown.
"""

from __future__ import annotations

import sys

from cellwall.guest.figures import is_figure, png_of
from cellwall.guest.outbox import MAX_BODY_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cellwall.guest.outbox import Outbox

DEFAULT_DISPLAY_BYTES = 8 * 1024 * 1024
"""All bundles of one execution together; a page of results, not a way to move data."""

_MOST_PLAIN = 200_000
"""Characters of text/plain: more than anybody reads, less than a frame after JSON escapes."""

_MOST_NOTE = 100
"""Characters that a note on what was cut may add without being cut again."""

_MOST_METADATA_BYTES = 16 * 1024
"""The header that carries the metadata is limited to 64 KiB."""

_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)


class Display:
    """The bounded way out for everything shown during one execution after another."""

    def __init__(self, outbox: Outbox, limit_bytes: int = DEFAULT_DISPLAY_BYTES) -> None:
        """Bound all bundles of one execution together to `limit_bytes`."""
        self._outbox = outbox
        self.limit_bytes = limit_bytes
        self._used_bytes = 0
        self._is_over = False
        self.cut_bytes = 0

    def begin(self) -> None:
        """Forget what the last execution used."""
        self._used_bytes = self.cut_bytes = 0
        self._is_over = False

    def show(self, thing: object, kind: str = "display") -> None:
        """Show one object in every form it offers."""
        bundle, metadata = bundle_of(thing)
        self.publish(bundle, metadata, kind)

    def publish(
        self, bundle: dict[str, Any], metadata: dict[str, Any] | None, kind: str = "display"
    ) -> None:
        """Send a MIME bundle, cut to what a frame and this execution may hold."""
        flush_stdout()
        body, lost_bytes = fit(bundle)
        self.cut_bytes += lost_bytes
        if self._used_bytes + len(body) > self.limit_bytes:
            self.cut_bytes += len(body)
            if self._is_over:
                return
            self._is_over = True
            note = f"[display limit of {self.limit_bytes} bytes reached: the rest is dropped]"
            body = _encode({"text/plain": note})
        else:
            self._used_bytes += len(body)
        header = {"ev": "display", "kind": kind, "metadata": _bounded_metadata(metadata)}
        if not self._outbox.post(header, body):
            self._show_without_link(body)

    def _show_without_link(self, body: bytes) -> None:
        # A forked child, or no descriptor left: the text still has stdout to go to.
        import json

        text = json.loads(body).get("text/plain")
        if text:
            sys.stdout.write(f"{text}\n")
        else:
            self.cut_bytes += len(body)


def flush_stdout() -> None:
    """Bring what was printed so far out before what is shown now."""
    try:
        sys.stdout.flush()
    except Exception:  # noqa: BLE001  the caller may have closed or replaced it
        return


def bundle_of(thing: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask an object for its MIME bundle the way notebooks do. Never raises for the object."""
    bundle: dict[str, Any] = {"text/plain": bounded_repr(thing)}
    metadata: dict[str, Any] = {}
    if isinstance(thing, type):
        return bundle, metadata
    if is_figure(thing):
        bundle["image/png"] = png_of(thing)
        return bundle, metadata
    whole = _ask(thing, "_repr_mimebundle_")
    if isinstance(whole, tuple):
        whole, extra = whole
        metadata.update(extra if isinstance(extra, dict) else {})
    if isinstance(whole, dict):
        bundle.update(whole)
        return bundle, metadata
    for mime, method in _METHODS:
        form = _ask(thing, method)
        if isinstance(form, tuple):
            form, metadata[mime] = form
        if form is not None:
            bundle[mime] = form
    return bundle, metadata


def _ask(thing: object, method: str) -> Any:  # noqa: ANN401  whatever the caller returns
    # Looked up on the type: objects that answer every attribute, as mocks do, have none of these.
    function = getattr(type(thing), method, None)
    if function is None:
        return None
    try:
        return function(thing)
    except Exception:  # noqa: BLE001  a broken form must not hide the others
        return None


def bounded_repr(thing: object) -> str:
    """repr(), without building a gigabyte of it when a slice already fills the limit."""
    try:
        if type(thing) in (str, bytes, bytearray, list, tuple):
            length = len(thing)  # type: ignore[arg-type]
            if length > _MOST_PLAIN:
                head = repr(thing[:_MOST_PLAIN])  # type: ignore[index]
                return cut_plain(head, f"of {length} items")
        return cut_plain(repr(thing))
    except Exception as error:  # noqa: BLE001  the caller's __repr__ may do anything
        return f"<{type(thing).__name__} object whose repr raised {type(error).__name__}>"


def cut_plain(text: str, note: str = "") -> str:
    """Text for text/plain, cut if needed with a word on what is missing."""
    if not note and len(text) <= _MOST_PLAIN + _MOST_NOTE:
        return text
    return f"{text[:_MOST_PLAIN]}... [cut {note or f'of {len(text)} characters'}]"


def fit(bundle: dict[str, Any]) -> tuple[bytes, int]:
    """A bundle as a body that fits a frame, and how many bytes were dropped for it."""
    texts = {}
    for mime, form in bundle.items():
        text = _text_of(mime, form)
        if text is not None:
            texts[mime] = cut_plain(text) if mime == "text/plain" else text
    lost = 0
    body = _encode(texts)
    while len(body) > MAX_BODY_BYTES and len(texts) > ("text/plain" in texts):
        largest = max((m for m in texts if m != "text/plain"), key=lambda m: len(texts[m]))
        size = len(texts.pop(largest))
        lost += size
        note = f"[{largest} of {size} bytes dropped: the limit is {MAX_BODY_BYTES}]"
        texts["text/plain"] = f"{texts.get('text/plain', '')[:_MOST_PLAIN]}\n{note}".lstrip("\n")
        body = _encode(texts)
    if len(body) > MAX_BODY_BYTES:
        # Control characters take six bytes each in JSON.
        lost += len(body)
        body = _encode({"text/plain": texts["text/plain"][: MAX_BODY_BYTES // 8]})
    return body, lost


def _text_of(mime: str, form: Any) -> str | None:  # noqa: ANN401  whatever the caller returned
    import base64
    import json

    try:
        if isinstance(form, (bytes, bytearray)):
            return base64.b64encode(form).decode("ascii")
        if isinstance(form, str):
            return str(form)
        return json.dumps(form, allow_nan=False)
    except Exception:  # noqa: BLE001  not JSON: this one form is left out
        return None


def _encode(texts: dict[str, str]) -> bytes:
    import json

    return json.dumps(texts, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _bounded_metadata(metadata: dict[str, Any] | None) -> dict[str, Any]:
    if not metadata:
        return {}
    import json

    try:
        size = len(json.dumps(metadata, allow_nan=False))
    except Exception:  # noqa: BLE001  not JSON
        return {}
    return metadata if size <= _MOST_METADATA_BYTES else {}
