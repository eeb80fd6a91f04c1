"""Inner calls: a sandbox's command routes of this server, asked as the caller.

The client library's commands watch each command that they name to its end; these calls look once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cellwall.client.connection.attempts import events_of, follow
from cellwall.client.connection.transport import Ask

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from cellwall.client.connection.transport import Json
    from cellwall.client.live import RemoteSandboxHandle
    from cellwall.model.execution import Event

_LOOKS, _LOOK_S = 100, 0.02
"""Number of looks for the end of a command, and seconds between them."""


async def start(live: RemoteSandboxHandle, body: Mapping[str, Any], key: str | None = None) -> Json:
    """Start a command in the background, and return the server's object of it.

    `key`: idempotency key; with one that was used the command of then is returned.
    """
    return await live.json(Ask("POST", "/commands", body={**body, "background": True}, key=key))


async def commands(live: RemoteSandboxHandle) -> list[Json]:
    """Return the commands that run or ended a while ago, the oldest first."""
    found: list[Json] = (await live.json(Ask("GET", "/commands")))["commands"]
    return found


async def command(live: RemoteSandboxHandle, command_id: str) -> Json:
    """Return one command. Raises NotFound."""
    return await live.json(Ask("GET", f"/commands/{command_id}"))


async def feed(
    live: RemoteSandboxHandle, command_id: str, data: bytes, *, close: bool = False
) -> None:
    """Write to a command's standard input. Raises Conflict if it has ended."""
    params = {"close": True} if close else {}
    await live.json(Ask("POST", f"/commands/{command_id}/stdin", params, content=data))


async def signal(live: RemoteSandboxHandle, command_id: str, number: int) -> None:
    """Send a signal to a command's process tree."""
    await live.json(Ask("POST", f"/commands/{command_id}/signal", body={"signal": number}))


async def until_ended(live: RemoteSandboxHandle, command_id: str) -> None:
    """Wait until a command has ended, but not for long."""
    for _ in range(_LOOKS):
        if (await command(live, command_id))["status"] != "running":
            return
        await asyncio.sleep(_LOOK_S)


def events(live: RemoteSandboxHandle, command_id: str, after: int) -> AsyncGenerator[Event, None]:
    """Return the events of a command after number `after`, to its end."""
    place = live.path(f"/commands/{command_id}")
    return follow(live.transport, lambda number: events_of(place, number), after=after)
