"""The form that builds a template: JSON, then a directory of the caller's as a tar.

Called by `calls`. The invariant: no more than a piece of the directory is in memory, and what
`.dockerignore` names stays here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.images.ignored import Ignored
from cellwall.model.errors import UsageError
from cellwall.model.ids import new_id
from cellwall.surface.trees.tar_pack import tar_steps
from cellwall.wire.asking import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def form_of(
    body: Mapping[str, Any], context: str | Path
) -> tuple[str, Callable[[], AsyncIterator[bytes]]]:
    """Return the media type of the form, and what yields it. Raises UsageError."""
    folder = Path(context)
    if not folder.is_dir():
        raise UsageError(f"context: {folder} is no directory", remedy="name the one with the files")
    boundary = f"cellwall-{new_id()}"
    media = f"multipart/form-data; boundary={boundary}"
    return media, lambda: _pieces(boundary, encoded(body), folder)


async def _pieces(boundary: str, body: bytes, folder: Path) -> AsyncIterator[bytes]:
    yield _head(boundary, "build", "application/json") + body + b"\r\n"
    yield _head(boundary, 'context"; filename="context.tar', "application/x-tar")
    steps = tar_steps(folder, Ignored(folder).has)
    while piece := await asyncio.to_thread(next, steps, b""):
        yield piece
    yield f"\r\n--{boundary}--\r\n".encode()


def _head(boundary: str, name: str, media: str) -> bytes:
    return (
        f"--{boundary}\r\n"
        f'Content-Disposition: form-data; name="{name}"\r\n'
        f"Content-Type: {media}\r\n\r\n"
    ).encode()
