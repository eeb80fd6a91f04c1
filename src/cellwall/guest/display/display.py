"""Displays of caller code: objects to MIME bundles, bundles to bounded `display` events.

Used by programs and cells alike; IPython's formatters, where a cell has them, only replace the
first half. It does not draw figures (`figures.py`) and does not capture stdout.

A bundle larger than a frame would end the sandbox, so `mime_bundles.fit` is the only way to a body.
Things appear in the right order only because stdout is flushed before each display.
"""

from __future__ import annotations

import sys

from cellwall.guest.display.figures import facts_of, is_figure, png_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cellwall.guest.channel.outbox import Outbox

DEFAULT_DISPLAY_BYTES = 8 * 1024 * 1024
"""Maximum bytes of all bundles of one execution: a page of results, not a way to move data."""

MOST_PLAIN = 200_000
"""Maximum characters of text/plain; after JSON escapes they are still less than a frame."""

_MOST_NOTE = 100
"""Maximum characters that a note on a cut may add without being cut again."""

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
    """The bounded way out for everything that is shown, one execution after another."""

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
        from cellwall.guest.display import mime_bundles

        flush_stdout()
        body, lost_bytes = mime_bundles.fit(bundle)
        self.cut_bytes += lost_bytes
        if self._used_bytes + len(body) > self.limit_bytes:
            self.cut_bytes += len(body)
            if self._is_over:
                return
            self._is_over = True
            note = f"[display limit of {self.limit_bytes} bytes reached: the rest is dropped]"
            body = mime_bundles.encoded({"text/plain": note})
        else:
            self._used_bytes += len(body)
        header = {"ev": "display", "kind": kind, "metadata": mime_bundles.bounded(metadata)}
        if not self._outbox.post(header, body):
            self._show_without_link(body)

    def _show_without_link(self, body: bytes) -> None:
        # In a forked child, or without a free descriptor, the text still has stdout to go to.
        from cellwall.guest.display import mime_bundles

        text = mime_bundles.plain_of(body)
        if text:
            sys.stdout.write(f"{text}\n")
        else:
            self.cut_bytes += len(body)


def flush_stdout() -> None:
    """Flush earlier output before something is displayed."""
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
        bundle.update(facts_of(thing))
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
    """Return repr(), without building a gigabyte of it when a slice already fills the limit."""
    try:
        if type(thing) in (str, bytes, bytearray, list, tuple):
            length = len(thing)  # type: ignore[arg-type]
            if length > MOST_PLAIN:
                head = repr(thing[:MOST_PLAIN])  # type: ignore[index]
                return cut_plain(head, f"of {length} items")
        return cut_plain(repr(thing))
    except Exception as error:  # noqa: BLE001  the caller's __repr__ may do anything
        return f"<{type(thing).__name__} object whose repr raised {type(error).__name__}>"


def cut_plain(text: str, note: str = "") -> str:
    """Return text for text/plain, cut if needed, with a note on the missing part."""
    if not note and len(text) <= MOST_PLAIN + _MOST_NOTE:
        return text
    return f"{text[:MOST_PLAIN]}... [cut {note or f'of {len(text)} characters'}]"
