"""What a fork-server says, read with bounds: it imported packages that nobody reviewed.

asyncio. Not what is asked (`fork_server`) and not how messages look (`fds`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, TypeVar

from cellwall.jail.protocol import fds
from cellwall.model.errors import SandboxBroken

T = TypeVar("T")


async def receive(sock: socket.socket, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
    """Wait for one control message; the socket is non-blocking."""
    await wait_readable(sock.fileno(), timeout_s)
    try:
        return fds.receive_message(sock)
    except ValueError as error:
        raise SandboxBroken(f"fork-server: {error}") from error


def member(message: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """One field of a message, of that type; SandboxBroken if it has none."""
    value = message.get(name)
    if not isinstance(value, kind):
        raise SandboxBroken(f"fork-server: a message without a proper {name!r}")
    return value


def error_number(message: Mapping[str, Any]) -> int | None:
    """The errno in a message, if it has one; SandboxBroken if that is no number."""
    return None if message.get("errno") is None else member(message, "errno", int)


async def wait_readable(fd: int, timeout_s: float) -> None:
    """Return once `fd` can be read; TimeoutError after `timeout_s` seconds."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, on_ready)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        loop.remove_reader(fd)
