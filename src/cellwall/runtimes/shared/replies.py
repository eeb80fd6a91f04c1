"""Bounded reading of a fork-server's replies: it has imported unreviewed packages.

Runs on asyncio in the engine process. Requests to it are in `fork_server`, the message format in
`fds`.
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
    """Return one field of a message; raise SandboxBroken unless it is of type `kind`."""
    value = message.get(name)
    if not isinstance(value, kind):
        raise SandboxBroken(f"fork-server: a message without a proper {name!r}")
    return value


def error_number(message: Mapping[str, Any]) -> int | None:
    """Return the errno in a message, if it has one; raise SandboxBroken if it is no number."""
    return None if message.get("errno") is None else member(message, "errno", int)


async def wait_readable(fd: int, timeout_s: float) -> None:
    """Return once `fd` can be read; raise TimeoutError after `timeout_s` seconds."""
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
