"""Descriptions of the server: the OpenAPI document for programs, one plain page for people.

Everything on them is cellwall's own and static: no script, no user content, no external resource.
"""

from __future__ import annotations

import functools
import html
from typing import TYPE_CHECKING, Any

from cellwall.server.http.endpoint import Answer, Endpoint
from cellwall.server.http.openapi import document
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_SAFE = {
    "content-security-policy": "default-src 'none'; style-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_STYLE = b"""
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
code { font: 0.9em ui-monospace, monospace; background: #f2f2f2; padding: 0 0.25em }
dt { font-weight: 600; margin-top: 1rem } dd { margin-left: 1.5rem }
.method { display: inline-block; min-width: 4.5em } table { border-collapse: collapse }
td, th { border: 1px solid #ddd; padding: 0.2em 0.6em; text-align: left; vertical-align: top }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd }
code { background: #222 } a { color: #8bf } }
"""


class Pages:
    """The document and the pages over a table of endpoints, which includes their own."""

    def __init__(self, others: tuple[Endpoint, ...]) -> None:
        """Describe `others` and these pages; each page is made when it is first requested."""
        self.endpoints = (
            Endpoint(
                "GET",
                "/openapi.json",
                self.openapi,
                "This document",
                {200: Answer("OpenAPI 3.1.")},
                access="public",
                tags=("server",),
            ),
            Endpoint(
                "GET",
                "/docs",
                self.docs,
                "The same for people",
                {200: Answer("A page.", None, ("text/html",))},
                access="public",
                tags=("server",),
            ),
            Endpoint(
                "GET",
                "/docs/style.css",
                self.style,
                "How that page looks",
                {200: Answer("A style sheet.", None, ("text/css",))},
                access="public",
                tags=("server",),
            ),
        )
        self._all = (*others, *self.endpoints)

    @functools.cached_property
    def _document(self) -> dict[str, Any]:
        return document(self._all)

    @functools.cached_property
    def _document_bytes(self) -> bytes:
        return one_line(self._document).encode()

    @functools.cached_property
    def _page(self) -> bytes:
        return _page_of(self._document)

    async def openapi(self, request: Request) -> None:
        """`GET /openapi.json`."""
        await request.answer_bytes(self._document_bytes, "application/json")

    async def docs(self, request: Request) -> None:
        """`GET /docs`."""
        await request.answer_bytes(self._page, "text/html; charset=utf-8", headers=_SAFE)

    async def style(self, request: Request) -> None:
        """`GET /docs/style.css`."""
        await request.answer_bytes(_STYLE, "text/css; charset=utf-8", headers=_SAFE)


def _page_of(described: dict[str, Any]) -> bytes:
    sections: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            tag = operation["tags"][0] if operation["tags"] else "more"
            sections.setdefault(tag, []).append(_operation(path, method, operation, described))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        "<title>cellwall</title><link rel=stylesheet href='/docs/style.css'>",
        f"<h1>cellwall {html.escape(described['info']['version'])}</h1>",
        "<p>Send your key as <code>Authorization: Bearer KEY</code>. For programs: "
        "<a href='/openapi.json'>openapi.json</a>.</p>",
        "<p>Besides: WebSocket <code>/sandboxes/{id}/terminal</code>, and HTTP or WebSocket to a "
        "server inside at <code>/sandboxes/{id}/ports/{port}/…</code>.</p>",
    ]
    for tag, entries in sections.items():
        parts.append(f"<h2>{html.escape(tag)}</h2><dl>{''.join(entries)}</dl>")
    return "\n".join(parts).encode()


def _operation(path: str, method: str, operation: dict[str, Any], described: dict[str, Any]) -> str:
    rows = [
        (each["name"], each["in"], each["schema"], bool(each.get("required")))
        for each in operation.get("parameters", ())
        if each["in"] != "path"
    ]
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        schema = described["components"]["schemas"].get(name, {})
        required = schema.get("required", ())
        for field, shape in schema.get("properties", {}).items():
            rows.append((field, "body", shape, field in required))
        if not schema:
            rows.append((media, "body", {}, True))
    table = "".join(_row(*row) for row in rows)
    return (
        f"<dt><code><span class=method>{method.upper()}</span>{html.escape(path)}</code></dt>"
        f"<dd>{html.escape(operation['summary'])}."
        + (f"<table>{table}</table>" if table else "")
        + "</dd>"
    )


def _row(name: str, where: str, schema: dict[str, Any], is_required: bool) -> str:
    words = html.escape(_shape(schema))
    note = html.escape(str(schema.get("description", "")))
    needed = "required" if is_required else ""
    return (
        f"<tr><td><code>{html.escape(name)}</code><td>{where}<td>{words}<td>{needed}<td>{note}</tr>"
    )


def _shape(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        words = [_shape(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(words)
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    return str(schema.get("type", "any"))
