"""The start command of a template, in a sandbox that was just made of it.

E2B keeps a template as a machine in which the command runs; here it starts with each sandbox, and
the sandbox is given to its client as soon as the template's other command succeeds. The invariant:
a sandbox that does not become ready is ended, and its client hears why.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon import inner
from cellwall.client.live import RemoteSandboxHandle
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.templates.built_facts import BuiltFacts
    from cellwall.client.connection.transport import Transport
    from cellwall.client.sandbox import AsyncSandbox

READY_S = 50.0
"""Seconds in which a sandbox has to become ready; clients wait for 60."""
_EVERY_S = 0.5
_SHOWN_CHARACTERS = 500


async def started(transport: Transport, sandbox: AsyncSandbox, facts: BuiltFacts) -> None:
    """Start the command, and wait until the sandbox is ready; otherwise end it."""
    try:
        if facts.start:
            body = {"argv": _argv(facts.start), "env": facts.env}
            body |= {"user": facts.user} if facts.user else {}
            live = RemoteSandboxHandle(transport, sandbox.facts)
            # A request that is repeated starts it once.
            await inner.start(live, body, key=f"e2b-start-{sandbox.id}")
        if facts.ready:
            await _wait(sandbox, facts, facts.ready)
    except BaseException:
        await sandbox.close()
        raise


async def _wait(sandbox: AsyncSandbox, facts: BuiltFacts, ready: str) -> None:
    until = time.monotonic() + READY_S
    while True:
        left = max(until - time.monotonic(), 1.0)
        done = await sandbox.commands.run(
            _argv(ready), user=facts.user, env=facts.env, timeout=left
        )
        if done.ok:
            return
        if time.monotonic() + _EVERY_S >= until:
            said = f"{done.stdout}{done.stderr}"[-_SHOWN_CHARACTERS:].strip()
            raise HttpError(
                504,
                "not_ready",
                f"readyCmd: the template was not ready within {READY_S:g} seconds: "
                f"{ready[:_SHOWN_CHARACTERS]!r} ended with {done.status}: {said}",
            )
        await asyncio.sleep(_EVERY_S)


def _argv(command: str) -> list[str]:
    return ["/bin/bash", "-l", "-c", command]
