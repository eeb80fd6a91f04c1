"""Images of a server: listed, pulled and removed, as far as the caller's key permits that.

Made by the clients. The objects are the server's own (`GET /images`), as JSON.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from cellwall.client.connection.transport import Ask, Transport, segment
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.connection.transport import Json
    from cellwall.surface.sync.loop_thread import LoopThread

_WAIT_S = 20
"""Seconds that the server holds one answer about a pull."""


class AsyncImages:
    """The images that one caller may name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[Json]:
        """Return the images that are on the server's machine, the newest first."""
        found: builtins.list[Json] = (await self._transport.json(Ask("GET", "/images")))["images"]
        return found

    async def get(self, image_id: str) -> Json:
        """Return one of them. Raises `NotFound`."""
        return await self._transport.json(Ask("GET", _path(image_id)))

    async def pull(self, image: str) -> Json:
        """Bring an image, such as `python:3.12-slim`, to the server's machine, and return it.

        It waits as long as that takes. Raises the error of a failed pull. A key of scope `manage`
        is needed.
        """
        body = {"image": image, "wait": _WAIT_S}
        ask = Ask("POST", "/images", body=body, is_held=True, is_repeatable=True)
        pull = await self._transport.json(ask)
        while pull["status"] == "coming":
            path = f"/images/pulls/{pull['id']}"
            pull = await self._transport.json(Ask("GET", path, {"wait": _WAIT_S}, is_held=True))
        if pull["error"] is not None:
            raise error_of(pull["error"])
        image_found: Json = pull["image"]
        return image_found

    async def remove(self, image_id: str) -> None:
        """Remove an image that no sandbox uses, for all tenants; a key of scope `admin` is needed.

        Raises `NotFound`, and `Conflict` for one in use.
        """
        await self._transport.json(Ask("DELETE", _path(image_id)))


class Images:
    """The same for synchronous programs."""

    def __init__(self, thread: LoopThread[AsyncClient]) -> None:
        self._thread = thread

    def list(self) -> builtins.list[Json]:
        """Return the images that are on the server's machine, the newest first."""
        return self._thread.call(lambda client, _put: client.images.list())

    def get(self, image_id: str) -> Json:
        """Return one of them. Raises `NotFound`."""
        return self._thread.call(lambda client, _put: client.images.get(image_id))

    def pull(self, image: str) -> Json:
        """Bring an image to the server's machine, and return it; see `AsyncImages.pull`."""
        return self._thread.call(lambda client, _put: client.images.pull(image))

    def remove(self, image_id: str) -> None:
        """Remove an image that no sandbox uses; see `AsyncImages.remove`."""
        self._thread.call(lambda client, _put: client.images.remove(image_id))


def _path(image_id: str) -> str:
    digits = image_id.removeprefix("sha256:")
    return f"/images/sha256:{segment(digits, 'image', remedy='list images')}"
