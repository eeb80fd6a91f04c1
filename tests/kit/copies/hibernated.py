"""What tests of hibernation share: a step that does not return yet, and what a close leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cellwall import AsyncSandbox, EngineSettings
from cellwall.model.errors import SandboxUnavailable
from kit.arena import Arena, descendants


def no_pool(**more: Any) -> EngineSettings:
    """Return settings of an engine that parks nothing."""
    return EngineSettings(pool_min=0, pool_max=0, **more)


def status(sandbox: AsyncSandbox) -> str:
    """Return its status; a type checker forgets nothing of a call's result."""
    return sandbox.status


def pids_of(sandbox: AsyncSandbox) -> set[int]:
    """The processes of a sandbox, as the kernel lists them."""
    init = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]  # the jail's
    return {init, *descendants(init)}


class Halt:
    """An async function that has done its work, and returns once the test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        real = getattr(owner, name)

        async def slowly(*given: Any, **more: Any) -> Any:
            made = await real(*given, **more)
            self.reached.set()
            await self.go_on.wait()
            return made

        monkeypatch.setattr(owner, name, slowly)


async def closed_meanwhile(
    arena: Arena,
    sandbox: AsyncSandbox,
    request: Coroutine[Any, Any, Any],
    halt: Halt,
    *,
    has_image: bool = True,
) -> None:
    """Close a sandbox while a request has come to `halt`; the request ends, and nothing is left.

    `has_image`: whether it is written down at that moment.
    """
    asked = asyncio.ensure_future(request)
    await asyncio.wait_for(halt.reached.wait(), 20)
    assert (arena.engine.copies_room.used_bytes > 0) == has_image  # the control
    await sandbox.close()
    halt.go_on.set()
    with pytest.raises(SandboxUnavailable, match="it was closed"):
        await asked
    assert status(sandbox) == "stopped"
    await arena.engine.wait_settled()
    assert arena.engine.copies_room.used_bytes == 0
    assert arena.engine.statistics().sandboxes == 0
