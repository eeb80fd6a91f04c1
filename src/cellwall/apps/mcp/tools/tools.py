"""Tools: the implementation of each tool on a client's sandboxes.

Called by `protocol` with checked arguments. The schemas are in `arguments` and `schemas`. Errors
are raised; `protocol` turns them into answers.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from cellwall.apps.mcp.tools import answers, arguments, copies
from cellwall.apps.mcp.tools.addresses import address, media_type, place
from cellwall.apps.mcp.tools.progress import Report, reported
from cellwall.engine.parts.contexts import MAIN
from cellwall.model.errors import FileError, NotFound, UsageError
from cellwall.model.excerpts import cut_middle, plain
from cellwall.surface.shared.kept_output import keep

if TYPE_CHECKING:
    from cellwall.apps.mcp.session import Session

READ_BYTES = 8 * 1024 * 1024
"""Maximum bytes of one file that a tool or a resource returns; it travels as text in one
message."""
_DATA_URI = re.compile(r"data:([^,;]*)(?:;[^,;=]+=[^,;]*)*(;base64)?,")


def _given(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - options of the library
    return {name: value for name, value in options.items() if value is not None}


# -- running ---------------------------------------------------------------------------------------


async def run_code(
    session: Session, asked: arguments.RunCode, report: Report | None
) -> CallToolResult:
    """Run a program once."""
    here = session.catalog.available()
    options = _given(
        language=here.language(asked.language),
        template=here.template(asked.template),
        stdin=asked.stdin,
        files=asked.files,
        args=asked.args,
        env=asked.env,
        collect=asked.collect,
        timeout=asked.timeout,
        limits=asked.limits and asked.limits.given(),
    )
    async with reported(report) as on_event:
        result = await session.library.run(asked.code, on_event, options)
    return answers.execution(result, session.budget_chars)


async def execute(
    session: Session, asked: arguments.Execute, report: Report | None
) -> CallToolResult:
    """Run code in a sandbox, in a context of that name, which is created if necessary."""
    sandbox = session.sandbox(asked.sandbox_id)
    here = session.catalog.available()
    language = None if asked.language is None else here.language(asked.language)
    async with reported(report) as on_event:
        run = partial(
            sandbox.run,
            asked.code,
            language,
            asked.context,
            stdin=asked.stdin,
            timeout=asked.timeout,
            on_event=on_event,
        )
        try:
            result = await run()
        except NotFound:
            if asked.context == MAIN or sandbox.status == "stopped":
                raise
            await sandbox.contexts.create(asked.context, here.language(language))
            result = await run()
    kept_in = await keep(sandbox, result, session.budget_chars)
    return answers.execution(result, session.budget_chars, kept_in)


async def run_command(
    session: Session, asked: arguments.RunCommand, report: Report | None
) -> CallToolResult:
    """Run a shell command in a sandbox."""
    sandbox = session.sandbox(asked.sandbox_id)
    async with reported(report) as on_event:
        result = await sandbox.commands.run(
            asked.command,
            cwd=asked.cwd,
            env=asked.env,
            stdin=asked.stdin,
            timeout=asked.timeout,
            on_event=on_event,
        )
    kept_in = await keep(sandbox, result, session.budget_chars)
    return answers.command(result, session.budget_chars, kept_in)


# -- sandboxes -------------------------------------------------------------------------------------


async def create_sandbox(
    session: Session, asked: arguments.CreateSandbox, _report: Report | None
) -> CallToolResult:
    """Create a sandbox."""
    template = session.catalog.available().template(asked.template)
    limits = asked.limits and asked.limits.given()
    sandbox = await session.create(
        _given(template=template, limits=limits, env=asked.env, auto_pause_s=asked.auto_pause_s)
    )
    isolation = sandbox.isolation.as_json()
    said = (
        f"Sandbox {sandbox.id} is ready: template {template}, isolation {isolation['level']} "
        f"({isolation['runtime']}). Give its id to the other tools."
    )
    facts = {"sandbox_id": sandbox.id, "template": template, "ends_at": sandbox.ends_at}
    about = {"isolation": isolation, "limits": answers.limits(sandbox.limits)}
    return answers.answer(said, {"text": said, **facts}, meta=about)


async def destroy_sandbox(
    session: Session, asked: arguments.DestroySandbox, _report: Report | None
) -> CallToolResult:
    """Destroy a sandbox."""
    await session.destroy(asked.sandbox_id)
    said = f"Sandbox {asked.sandbox_id} is destroyed."
    return answers.answer(said, {"sandbox_id": asked.sandbox_id, "message": "destroyed"})


# -- files -----------------------------------------------------------------------------------------


async def content_of(session: Session, sandbox_id: str, path: str) -> bytes:
    """Return a file's bytes; `FileError` above `READ_BYTES`."""
    sandbox = session.sandbox(sandbox_id)
    try:
        return await session.library.content(sandbox, path, READ_BYTES)
    except FileError as error:
        if error.reason != "too_large":
            raise
        remedy = "read a part of it with run_command, such as head, tail or grep"
        raise FileError(error.message, reason=error.reason, remedy=remedy) from None


async def read_file(
    session: Session, asked: arguments.ReadFile, _report: Report | None
) -> CallToolResult:
    """Read a file: as text, as an image, or as a resource."""
    data = await content_of(session, asked.sandbox_id, asked.path)
    facts = _facts(asked.sandbox_id, asked.path, len(data))
    mime = media_type(asked.path)
    if mime in answers.SHOWN_IMAGES:
        image = ImageContent(data=base64.b64encode(data).decode("ascii"), mime_type=mime)
        said = f"{asked.path}: {mime}, {len(data)} bytes"
        return answers.answer(said, {**facts, "mime_type": mime}, image)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _binary(asked.path, mime, data, facts)
    return _text(session, asked, text, facts)


def _text(
    session: Session, asked: arguments.ReadFile, text: str, facts: Mapping[str, Any]
) -> CallToolResult:
    # Not `splitlines`: it ends lines where other tools do not, such as at a form feed.
    lines = list(io.StringIO(text, newline="\n"))
    first = asked.first_line - 1
    wanted = lines[first : None if asked.lines is None else first + asked.lines]
    if lines and not wanted:
        raise UsageError(
            f"first_line: {asked.first_line} is behind the end", remedy=f"it has {len(lines)} lines"
        )
    # Unchanged: the file's text may contain control characters that a terminal would interpret.
    shown = cut_middle("".join(wanted), session.budget_chars)
    more = {"mime_type": "text/plain", "lines": len(lines), "text": shown}
    return answers.answer(shown or "(The file is empty.)", {**facts, **more})


def _binary(path: str, mime: str, data: bytes, facts: Mapping[str, Any]) -> CallToolResult:
    said = f"{path} is not text ({mime}, {len(data)} bytes). download gives it as a resource."
    return answers.answer(said, {**facts, "mime_type": mime})


async def write_file(
    session: Session, asked: arguments.WriteFile, _report: Report | None
) -> CallToolResult:
    """Write a text file."""
    data = asked.content.encode(errors="replace")
    files = session.sandbox(asked.sandbox_id).files
    if asked.append:
        await files.append(asked.path, data)
    else:
        await files.write(asked.path, data)
    return _written(asked.sandbox_id, asked.path, len(data))


async def upload(
    session: Session, asked: arguments.Upload, _report: Report | None
) -> CallToolResult:
    """Write bytes."""
    data = await _uploaded(session, asked)
    await session.sandbox(asked.sandbox_id).files.write(asked.path, data)
    return _written(asked.sandbox_id, asked.path, len(data))


async def _uploaded(session: Session, asked: arguments.Upload) -> bytes:
    if (asked.blob is None) == (asked.uri is None):
        raise UsageError("upload: give either blob or uri", remedy="blob is the bytes as base64")
    if asked.blob is not None:
        return _decoded("blob", asked.blob)
    uri = asked.uri or ""
    if uri.startswith("data:"):
        head = _DATA_URI.match(uri)
        if head is None:
            raise UsageError("uri: not a data: URI", remedy="like data:text/plain;base64,aGk=")
        rest = uri[head.end() :]
        return _decoded("uri", rest) if head[2] else unquote_to_bytes(rest)
    source = place(uri)
    return await content_of(session, source.sandbox_id, source.path)


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{name}: it is not base64", remedy="or use write_file for text") from None


async def download(
    session: Session, asked: arguments.Download, _report: Report | None
) -> CallToolResult:
    """Return a file as a resource: its bytes, and a link to read it again."""
    data = await content_of(session, asked.sandbox_id, asked.path)
    facts = _facts(asked.sandbox_id, asked.path, len(data))
    mime, uri = media_type(asked.path), facts["uri"]
    blob = BlobResourceContents(
        uri=uri, mime_type=mime, blob=base64.b64encode(data).decode("ascii")
    )
    link = ResourceLink(uri=uri, name=asked.path, mime_type=mime, size=len(data))
    return answers.answer(
        f"{asked.path}: {mime}, {len(data)} bytes, as a resource.",
        facts,
        link,
        EmbeddedResource(resource=blob),
    )


async def list_files(
    session: Session, asked: arguments.ListFiles, _report: Report | None
) -> CallToolResult:
    """List a directory."""
    files = session.sandbox(asked.sandbox_id).files
    found = await files.listing(asked.path, depth=asked.depth, limit=asked.limit)
    rows = [f"| {_cell(each.path)} | {each.type} | {each.size} |" for each in found.entries]
    table = "\n".join(["| path | type | bytes |", "| --- | --- | --- |", *rows])
    more = "\n\nThere are more; ask for a deeper path." if found.is_truncated else ""
    entries = [
        {
            "path": each.path,
            "type": each.type,
            "size": each.size,
            "mtime": each.mtime,
            "uri": address(asked.sandbox_id, each.path),
        }
        for each in found.entries
    ]
    kept = _fitting(entries, session.budget_chars)
    is_cut = found.is_truncated or len(kept) < len(entries)
    facts = {"path": asked.path, "entries": kept, "truncated": is_cut}
    said = table + more if rows else "(The directory is empty.)"
    return answers.answer(cut_middle(said, session.budget_chars), facts)


def _fitting(entries: list[dict[str, Any]], budget_chars: int) -> list[dict[str, Any]]:
    """Return the first entries whose JSON fits the budget."""
    sizes = accumulate(len(json.dumps(each)) + 2 for each in entries)
    return [each for each, size in zip(entries, sizes, strict=True) if size <= budget_chars]


def _cell(text: str) -> str:
    return plain(text).replace("\n", " ").replace("|", "\\|")


def _facts(sandbox_id: str, path: str, size: int) -> dict[str, Any]:
    return {"uri": address(sandbox_id, path), "path": path, "size": size}


def _written(sandbox_id: str, path: str, size: int) -> CallToolResult:
    facts = _facts(sandbox_id, path, size)
    return CallToolResult(
        content=[
            TextContent(text=f"{size} bytes are written to {path}."),
            ResourceLink(uri=facts["uri"], name=path, mime_type=media_type(path)),
        ],
        structured_content=facts,
    )


Work = Callable[["Session", Any, "Report | None"], Awaitable[CallToolResult]]
BY_NAME: Mapping[str, Work] = {
    "run_code": run_code,
    "create_sandbox": create_sandbox,
    "execute": execute,
    "run_command": run_command,
    "read_file": read_file,
    "write_file": write_file,
    "list_files": list_files,
    "upload": upload,
    "download": download,
    "destroy_sandbox": destroy_sandbox,
    "fork_sandbox": copies.fork_sandbox,
    "snapshot_sandbox": copies.snapshot_sandbox,
    "restore_snapshot": copies.restore_snapshot,
    "list_snapshots": copies.list_snapshots,
    "delete_snapshot": copies.delete_snapshot,
}
