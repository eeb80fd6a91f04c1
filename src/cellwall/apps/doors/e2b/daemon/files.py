"""File routes of the daemon: `GET /files` and `POST /files`, streamed both ways.

Content is never whole in memory, except small files. The invariant: whatever a client announces or
compresses, no more bytes are taken than an upload may have.
"""

from __future__ import annotations

import json
import posixpath
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid
from cellwall.apps.doors.e2b.daemon.faults import sentence
from cellwall.apps.doors.e2b.daemon.filesystem import first_missing, give
from cellwall.apps.doors.e2b.daemon.users import account
from cellwall.client.connection.transport import Ask
from cellwall.model.errors import FileError
from cellwall.model.files import check_metadata
from cellwall.server.core.errors import HttpError, status_of
from cellwall.server.core.request import too_large
from cellwall.server.streaming.uploads import FormReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.apps.doors.e2b.daemon.users import Account
    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.server.core.request import Request

_SMALL_BYTES = 1 << 20
"""Files up to this size are sent on in one piece."""
_INFLATED_BYTES = 1 << 18
_PASSED = (
    "content-length",
    "content-range",
    "accept-ranges",
    "content-disposition",
    "x-content-type-options",
    "content-security-policy",
    "cross-origin-resource-policy",
)
_GZIP = zlib.MAX_WBITS | 16
_METADATA = "x-metadata-"
_OCTETS = "application/octet-stream"


async def read(seat: Seat) -> None:
    """Answer `GET /files`: a file, or the range of it that is wanted."""
    await _shielded(seat.request, _read(seat))


async def write(seat: Seat) -> None:
    """Answer `POST /files`: files of a form, or one as the body."""
    await _shielded(seat.request, _write(seat))


async def _shielded(request: Request, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and answer an error in the shape of these routes."""
    try:
        await work
    except ConnectError as error:
        await _refuse(request, error.status, error.message)
    except FileError as error:
        if request.has_answered:
            raise
        await _refuse(request, *_said(error))
    except HttpError as error:
        await _refuse(request, error.status, sentence(error))


def _said(error: FileError) -> tuple[int, str]:
    return (404 if error.reason == "not_directory" else status_of(error)), sentence(error)


async def _refuse(request: Request, status: int, message: str) -> None:
    await request.refuse({"code": status, "message": message}, status, {})


async def _read(seat: Seat) -> None:
    query = _query(seat.request)
    who = await account(seat, query.get("username"))
    path = who.path(query.get("path", ""))
    wanted = seat.request.headers.get("range")
    headers = {} if wanted is None else {"range": wanted}
    ask = Ask("GET", seat.live.path("/files"), {"path": path}, headers=headers)
    try:
        async with seat.live.transport.stream(ask) as response:
            passed = {name: each for name in _PASSED if (each := response.headers.get(name))}
            await seat.request.start(response.status_code, _OCTETS, passed)
            async for piece in response.aiter_raw():
                await seat.request.write(piece)
            await seat.request.end()
    except FileError as error:
        raise _read_error(error, path) from None


def _read_error(error: FileError, path: str) -> Exception:
    if error.reason in ("not_found", "not_directory"):
        return ConnectError("not_found", f"path '{path}' does not exist")
    if error.reason == "is_directory":
        return invalid(f"path '{path}' is a directory")
    return error


# -- writing -----------------------------------------------------------------------------------


async def _write(seat: Seat) -> None:
    request, query = seat.request, _query(seat.request)
    metadata = _metadata(request)
    who = await account(seat, query.get("username"))
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == "multipart/form-data":
        written = await _form(seat, who, query.get("path"), metadata)
    elif media == _OCTETS:
        if not query.get("path"):
            raise invalid("path: it is missing")
        path = who.path(query["path"])
        await _put(seat, who, path, _plain(request), metadata)
        written = [path]
    else:
        raise HttpError(415, "content_type", f"content type {media[:80]!r} is not taken")
    more = {"metadata": metadata} if metadata else {}
    shown = [
        {"path": path, "name": posixpath.basename(path), "type": "file", **more} for path in written
    ]
    await request.answer_bytes(json.dumps(shown).encode("ascii"), "application/json")


def _metadata(request: Request) -> dict[str, str]:
    """Return the metadata that a request gives all its files. Raises ConnectError."""
    found: dict[str, str] = {}
    for raw_name, value in request.scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name.startswith(_METADATA):  # of repeated ones the first counts
            found.setdefault(name.removeprefix(_METADATA), value.decode("latin-1"))
    try:
        return check_metadata(found)
    except ValueError as error:
        raise invalid(str(error)) from None


async def _form(
    seat: Seat, who: Account, given: str | None, metadata: Mapping[str, str]
) -> list[str]:
    if "content-encoding" in seat.request.headers:
        raise invalid("content-encoding: forms are taken plain")
    reader = FormReader(seat.request)
    written: list[str] = []
    async for part in reader.parts():
        name = given or part.file_name if part.field == b"file" else part.file_name
        if name is None:
            continue
        path = who.path(given or name)
        if path in written:
            raise invalid(f"path '{path}': it comes twice in one request")
        await _put(seat, who, path, reader.pieces(part), metadata)
        written.append(path)
    if not written:
        raise invalid("form: there is no file in it")
    return written


def _plain(request: Request) -> AsyncIterator[bytes]:
    """Return the body's bytes, inflated if it is compressed."""
    pieces = request.pieces(request.settings.upload_bytes)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return pieces
    if encoding != "gzip":
        raise HttpError(415, "content_encoding", f"content encoding {encoding[:40]!r}")
    return inflated(pieces, request.settings.upload_bytes)


async def inflated(pieces: AsyncIterator[bytes], most_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield what gzip has packed. Raises ConnectError, and HttpError above `most_bytes`."""
    inflater = zlib.decompressobj(wbits=_GZIP)
    size = 0
    try:
        async for piece in pieces:
            rest = piece
            while rest:
                if inflater.eof:  # another member begins
                    inflater = zlib.decompressobj(wbits=_GZIP)
                data = inflater.decompress(rest, _INFLATED_BYTES)
                rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                size += len(data)
                if size > most_bytes:
                    raise too_large(most_bytes)
                if data:
                    yield data
    except zlib.error as error:
        raise invalid(f"gzip: {error}") from None
    if not inflater.eof:
        raise invalid("gzip: it ends too early")


async def _put(
    seat: Seat,
    who: Account,
    path: str,
    pieces: AsyncIterator[bytes],
    metadata: Mapping[str, str],
) -> None:
    """Write a file and its parents, and give them to the user who asked."""
    top = await first_missing(seat.sandbox.files, path, who)
    begin = bytearray()
    is_whole = True
    async for piece in pieces:
        begin += piece
        if len(begin) > _SMALL_BYTES:
            is_whole = False
            break
    content = bytes(begin) if is_whole else lambda: _joined(bytes(begin), pieces)
    params = {"path": path, **({"metadata": json.dumps(metadata)} if metadata else {})}
    ask = Ask("PUT", "/files", params, content=content, is_held=True, is_repeatable=False)
    try:
        await seat.live.json(ask)
    except FileError as error:
        if error.reason == "is_directory":
            raise invalid(f"path '{path}' is a directory") from None
        raise
    await give(seat.sandbox, top, who, is_tree=top != path)


async def _joined(begin: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begin
    async for piece in pieces:
        yield piece


def _query(request: Request) -> Mapping[str, str]:
    raw = request.scope.get("query_string", b"").decode("latin-1")
    try:
        return dict(parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=32))
    except ValueError:
        raise invalid("query: it cannot be read") from None
