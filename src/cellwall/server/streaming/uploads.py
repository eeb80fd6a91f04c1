"""Uploads of files: one as the body, or several as a form.

Called by `routes.files`. A file is never whole in memory. The invariant: bytes are counted while
they are read, so a body without a length costs no more than one with a length.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from python_multipart.multipart import MultipartParser, parse_options_header

from cellwall.model.errors import UsageError
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cellwall.engine.parts.files import Files
    from cellwall.server.core.request import Request

_MOST_PARTS = 100
_MOST_HEADER_BYTES = 8192


class _Part:
    """One part of a form on its way in."""

    def __init__(self) -> None:
        self.header_bytes = 0
        self.name = b""
        self.value = b""
        self.headers: dict[bytes, bytes] = {}
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

    @property
    def field(self) -> bytes:
        """The name of the form's field."""
        _, options = parse_options_header(self.headers.get(b"content-disposition", b""))
        return options.get(b"name", b"")

    @property
    def file_name(self) -> str | None:
        """The file's name; None for a field that is no file."""
        _, options = parse_options_header(self.headers.get(b"content-disposition", b""))
        raw = options.get(b"filename")
        return None if raw is None else raw.decode("utf-8", "replace")


class Form:
    """A push parser of multipart/form-data that hands out parts as they come."""

    def __init__(self, content_type: str) -> None:
        """`content_type` is the request's header."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise HttpError(
                415,
                "content_type",
                "body: not multipart/form-data with a boundary",
                remedy="send a form with files",
            )
        self.parts: list[_Part] = []
        self._part = _Part()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_begin,
                "on_header_field": self._on_field,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_end,
                "on_end": self._on_last,
            },
        )
        self._count = 0
        self._is_whole = False

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""
        try:
            self._parser.write(data)
        except ValueError as error:
            raise UsageError(f"form: {error}", remedy="send proper multipart") from None

    def finish(self) -> None:
        """Raise `UsageError` unless the last boundary was seen."""
        if not self._is_whole:
            raise UsageError("form: it ends too early", remedy="send all of it")

    def _on_last(self) -> None:
        self._is_whole = True

    def _on_begin(self) -> None:
        self._count += 1
        if self._count > _MOST_PARTS:
            raise HttpError(413, "too_large", f"form: more than {_MOST_PARTS} parts")
        self._part = _Part()

    def _grow(self, size: int) -> None:
        self._part.header_bytes += size
        if self._part.header_bytes > _MOST_HEADER_BYTES:
            raise HttpError(413, "too_large", "form: the headers of a part are too long")

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._grow(end - start)
        self._part.name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._grow(end - start)
        self._part.value += data[start:end]

    def _on_header_end(self) -> None:
        part = self._part
        part.headers[part.name.lower()] = part.value
        part.name = part.value = b""

    def _on_headers(self) -> None:
        self.parts.append(self._part)

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._part.pieces.put_nowait(data[start:end])

    def _on_end(self) -> None:
        self._part.pieces.put_nowait(None)


class FormReader:
    """Reads a request's form part by part; reads no more than the current part needs."""

    def __init__(self, request: Request) -> None:
        self._form = Form(request.headers.get("content-type", ""))
        self._body = request.pieces(request.settings.upload_bytes)
        self._is_whole = False

    async def parts(self) -> AsyncIterator[_Part]:
        """Yield each part once its headers are there; its pieces must be taken before the next."""
        given = 0
        while True:
            while given < len(self._form.parts):
                part = self._form.parts[given]
                given += 1
                yield part
                async for _ in self.pieces(part):  # pieces that the consumer left
                    pass
            if self._is_whole:
                return
            await self._more()

    async def pieces(self, part: _Part) -> AsyncIterator[bytes]:
        """Yield a part's content."""
        while True:
            while not part.pieces.empty():
                piece = part.pieces.get_nowait()
                if piece is None:
                    part.pieces.put_nowait(None)
                    return
                yield piece
            if self._is_whole:
                return
            await self._more()

    async def _more(self) -> None:
        data = await anext(self._body, None)
        if data is None:
            self._form.finish()
            self._is_whole = True
        else:
            self._form.feed(data)


async def receive_form(request: Request, files: Files, folder: str) -> list[dict[str, object]]:
    """Write every file of a form below `folder`; return their paths and sizes."""
    reader = FormReader(request)
    written: list[dict[str, object]] = []
    async for part in reader.parts():
        name = part.file_name
        if name is None:
            continue
        path = f"{folder.rstrip('/')}/{check_name(name)}" if folder != "." else check_name(name)
        size = await files.write_stream(path, reader.pieces(part))
        written.append({"path": path, "size": size})
    return written


def check_name(name: str) -> str:
    """Return a form's file name; `UsageError` if it is anything else than one name."""
    if not name or name in {".", ".."} or set(name) & {"/", "\\", "\0"} or len(name) > 255:
        raise UsageError(
            f"form: {name[:80]!r} is not a file name", remedy="send one name without slashes"
        )
    return name
