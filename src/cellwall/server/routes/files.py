"""Routes of a sandbox's files. Paths are resolved inside, by the sandbox's kernel and rights."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from cellwall.server.http.endpoint import Answer, Endpoint, body_of, query_of, sandbox
from cellwall.server.schemas import responses
from cellwall.server.schemas.paths import check_name
from cellwall.server.schemas.requests import (
    FilesQuery,
    FolderQuery,
    MkdirBody,
    MoveBody,
    PathQuery,
    RemoveQuery,
    WatchQuery,
    WriteQuery,
)
from cellwall.server.streaming.downloads import attachment, send_file
from cellwall.server.streaming.streams import MEDIA, chosen, send_items
from cellwall.server.streaming.uploads import receive_form

if TYPE_CHECKING:
    from cellwall.engine.parts.files import Files
    from cellwall.server.core.request import Request

_TAR = "application/x-tar"


def _files(request: Request) -> Files:
    return sandbox(request).sandbox.files


async def read(request: Request) -> None:
    """`GET /sandboxes/{id}/files`."""
    query = query_of(request, PathQuery)
    await send_file(request, _files(request), check_name(query.path))


async def write(request: Request) -> None:
    """`PUT /sandboxes/{id}/files`."""
    query = query_of(request, WriteQuery)
    path, files = check_name(query.path), _files(request)
    pieces = request.pieces(request.settings.upload_bytes)
    if query.append:
        await files.append_stream(path, pieces)
        size = (await files.stat(path)).size
    else:
        mode = None if query.mode is None else int(query.mode, 8)
        size = await files.write_stream(path, pieces, mode=mode, metadata=query.metadata)
    await request.answer({"path": path, "size": size})


async def receive(request: Request) -> None:
    """`POST /sandboxes/{id}/files`, a form."""
    query = query_of(request, FolderQuery)
    written = await receive_form(request, _files(request), check_name(query.path))
    await request.answer({"files": written})


async def remove(request: Request) -> None:
    """`DELETE /sandboxes/{id}/files`."""
    query = query_of(request, RemoveQuery)
    await _files(request).remove(check_name(query.path), recursive=query.recursive)
    await request.answer({"message": "removed", "path": query.path})


async def index(request: Request) -> None:
    """`GET /sandboxes/{id}/files/list`."""
    query = query_of(request, FilesQuery)
    listing = await _files(request).listing(
        check_name(query.path), depth=query.depth, limit=query.limit
    )
    entries = [asdict(entry) for entry in listing.entries]
    await request.answer({"entries": entries, "truncated": listing.is_truncated})


async def stat(request: Request) -> None:
    """`GET /sandboxes/{id}/files/stat`."""
    query = query_of(request, PathQuery)
    await request.answer(asdict(await _files(request).stat(check_name(query.path))))


async def mkdir(request: Request) -> None:
    """`POST /sandboxes/{id}/files/mkdir`."""
    body = await body_of(request, MkdirBody)
    await _files(request).mkdir(check_name(body.path), parents=body.parents)
    await request.answer({"message": "made", "path": body.path})


async def move(request: Request) -> None:
    """`POST /sandboxes/{id}/files/move`."""
    body = await body_of(request, MoveBody)
    await _files(request).move(check_name(body.path), check_name(body.target))
    await request.answer({"message": "moved", "path": body.target})


async def pack(request: Request) -> None:
    """`GET /sandboxes/{id}/files/archive`."""
    query = query_of(request, FolderQuery)
    path = check_name(query.path)
    pieces = _files(request).stream_dir(path)
    try:
        first = await anext(pieces, b"")  # refused reads fail here, before the headers are sent
        name = path.rstrip("/").rpartition("/")[2].strip(".") or "files"
        await request.start(200, _TAR, attachment(f"{name}.tar"))
        await request.write(first)
        async for piece in pieces:
            await request.write(piece)
        await request.end()
    finally:
        await pieces.aclose()


async def unpack(request: Request) -> None:
    """`PUT /sandboxes/{id}/files/archive`."""
    query = query_of(request, FolderQuery)
    request.check_type(_TAR)
    pieces = request.pieces(request.settings.upload_bytes)
    files, size = await _files(request).put_tree(check_name(query.path), pieces)
    await request.answer({"files": files, "bytes": size})


async def watch(request: Request) -> None:
    """`GET /sandboxes/{id}/files/watch`."""
    form = chosen(request, ("ndjson", "sse"))
    query = query_of(request, WatchQuery)
    async with _files(request).watch(check_name(query.path), recursive=query.recursive) as watching:
        changes = ({"type": "change", **asdict(change)} async for change in watching)
        await send_items(request, form, changes, {})


_BASE = "/sandboxes/{sandbox_id}/files"
_DONE = {200: Answer("Done.", responses.PathDone)}
ENDPOINTS = (
    Endpoint(
        "GET",
        _BASE,
        read,
        "Read a file, or a range of it",
        {
            200: Answer("Its bytes.", None, ("application/octet-stream",)),
            206: Answer("The range.", None, ("application/octet-stream",)),
        },
        query=PathQuery,
        headers=("Range",),
        tags=("files",),
    ),
    Endpoint(
        "PUT",
        _BASE,
        write,
        "Write a file; it appears at once and whole",
        {200: Answer("It is there.", responses.File)},
        body_media="application/octet-stream",
        query=WriteQuery,
        tags=("files",),
    ),
    Endpoint(
        "POST",
        _BASE,
        receive,
        "Write the files of a form",
        {200: Answer("They are there.", responses.FileList)},
        body_media="multipart/form-data",
        query=FolderQuery,
        tags=("files",),
    ),
    Endpoint(
        "DELETE",
        _BASE,
        remove,
        "Remove a file, an empty directory, or a tree",
        _DONE,
        query=RemoveQuery,
        tags=("files",),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/list",
        index,
        "List a directory",
        {200: Answer("Its entries.", responses.Entries)},
        query=FilesQuery,
        tags=("files",),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/stat",
        stat,
        "Describe a file; links are not followed",
        {200: Answer("The file.", responses.Entry)},
        query=PathQuery,
        tags=("files",),
    ),
    Endpoint(
        "POST", f"{_BASE}/mkdir", mkdir, "Make a directory", _DONE, body=MkdirBody, tags=("files",)
    ),
    Endpoint(
        "POST", f"{_BASE}/move", move, "Move or rename", _DONE, body=MoveBody, tags=("files",)
    ),
    Endpoint(
        "GET",
        f"{_BASE}/watch",
        watch,
        "Changes in a directory, as they come",
        {200: Answer("Changes.", None, (MEDIA["ndjson"], MEDIA["sse"]))},
        query=WatchQuery,
        tags=("files",),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/archive",
        pack,
        "Take a directory as a tar stream",
        {200: Answer("The archive.", None, (_TAR,))},
        query=FolderQuery,
        tags=("files",),
    ),
    Endpoint(
        "PUT",
        f"{_BASE}/archive",
        unpack,
        "Unpack a tar stream inside",
        {200: Answer("It is unpacked.", responses.Unpacked)},
        body_media=_TAR,
        query=FolderQuery,
        tags=("files",),
    ),
)
