"""Readable bundles: the form of a MIME bundle that a model reads best.

Used by `for_model`, which handles pictures and the total length. The bundle was written by hostile
code: HTML is bounded, and split at its tags by an expression without backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from typing import Any

from cellwall.model.tables import as_markdown

_MOST_HTML_CHARS = 256 * 1024
_CHARTS = {
    "application/vnd.plotly.": "Plotly",
    "application/vnd.vegalite.": "Vega-Lite",
    "application/vnd.vega.": "Vega",
    "application/vnd.bokehjs": "Bokeh",
}
_OPAQUE = re.compile(r"<[\w.]+ (?:object|at 0x[0-9a-f]+|object at 0x[0-9a-f]+)>")
"""A repr that gives only a class and an address, as `object.__repr__` makes it."""
_TAG = re.compile(r"(<[^<>]*>)")
_NAME = re.compile(r"<(/?)([a-z0-9]+)", re.IGNORECASE)
_UNSEEN = frozenset(("script", "style", "head", "template", "noscript"))
_BLOCKS = re.compile(
    r"(?:address|article|aside|blockquote|br|caption|d[dlt]|details|div|fieldset|fig\w+|footer|form"
    r"|h[1-6r]|header|iframe|li|main|nav|ol|option|p|pre|section|select|summary|t(?:able|body|d|foot|h|head|itle|r)|ul)\Z",
    re.IGNORECASE,
)


def chart_of(bundle: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the type of the chart that a library would draw from the bundle, and the library."""
    for mime in bundle:
        for prefix, name in _CHARTS.items():
            if mime.startswith(prefix):
                return mime, name
    return None


def text_of(bundle: Mapping[str, Any]) -> str | None:
    """Return the bundle as text, None if it has none.

    Markdown is preferred to plain text, which is skipped if it only names the object's class.
    """
    table = as_markdown(str(bundle.get("text/html", "")))
    if table is not None:
        return table
    if "text/markdown" in bundle:
        return str(bundle["text/markdown"])
    said = bundle.get("text/plain")
    if said is not None and not is_opaque(said):
        return str(said)
    for mime in ("text/latex", *filter(_is_json, bundle)):
        if mime in bundle:
            return str(bundle[mime])
    return html_text(str(bundle.get("text/html", ""))) or (None if said is None else str(said))


def is_opaque(said: object) -> bool:
    """Report whether a plain text says only what class its object has."""
    return _OPAQUE.fullmatch(str(said).strip()) is not None


def _is_json(mime: str) -> bool:
    return mime == "application/json" or (
        mime.startswith("application/") and mime.endswith("+json")
    )


def html_text(html: str) -> str:
    """Return the visible text of a page, one line for each block."""
    parts: list[str] = []
    unseen = ""
    for number, piece in enumerate(_TAG.split(html[:_MOST_HTML_CHARS])):
        if number % 2 == 0:
            if not unseen:
                parts.append(" ".join(unescape(piece).split("\n")))
            continue
        found = _NAME.match(piece)
        is_end, name = (found[1] == "/", found[2].lower()) if found else (False, "")
        if unseen:
            unseen = "" if is_end and name == unseen else unseen
        elif name in _UNSEEN and not is_end and not piece.endswith("/>"):
            unseen = name
        elif _BLOCKS.match(name):
            parts.append("\n")
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    return "\n".join(filter(None, lines))
