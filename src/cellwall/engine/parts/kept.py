"""Sandboxes of an earlier server, which an engine takes over (design/0040).

Called by `Engine.take_over` before its first request. What a runtime does for it is in
`runtimes.keeping.KeepsSandboxes`. The invariant: nothing that an earlier server's caller had under
way goes on unseen: it is interrupted, then ended, and its events reach no caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from cellwall.engine.parts.kept_commands import KeptCommand
from cellwall.engine.parts.network import policy_of
from cellwall.model.errors import CellwallError
from cellwall.model.network import NetworkPolicy

if TYPE_CHECKING:
    from cellwall.engine.parts.network import Outside
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.runtimes.channel.take_over import Found

_log = logging.getLogger("cellwall.engine")
_INTERRUPT_S = 2.0
"""Seconds that an interrupted cell has for its end."""
_END_S = 5.0


async def _nothing() -> None:
    """Do nothing: there is nothing to settle."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine keeps of a sandbox beyond its own end."""

    created_at: float
    """Seconds since the epoch, like `ends_at`."""
    ends_at: float
    trust: str | None
    tenant: str
    network: Mapping[str, Any] | None
    """Its network policy; None if it has no way out."""
    is_opened: bool
    """Whether TLS was opened for it, or secrets put in: those are not kept."""
    auto_pause_s: float | None = None
    """Seconds without activity after which it pauses; None: never."""
    resume: str = "auto"
    """What resumes it, as `PauseChoice.resume`."""
    kills: int = 0
    """Number of the kernel's memory kills that were reported as the reason of an end."""
    hibernate_s: float | None = None
    """Seconds of a pause after which it is hibernated, as `PauseChoice.hibernate_s`."""
    id: str = ""
    """Its id, which is not its runtime's once it was hibernated; empty: it is."""
    commands: Sequence[Any] = ()
    """What is kept of its background commands: a `KeptCommand` each, or that as JSON's values."""

    @classmethod
    def of(cls, sandbox: AsyncSandbox, tenant: str) -> Facts:
        """Return the facts of a sandbox now."""
        live = sandbox.live
        network = None if live.network is None else policy_of(live).as_json()
        is_opened = live.network is not None and live.network.is_opened
        facts = (sandbox.created_at, sandbox.ends_at, live.trust, tenant, network, is_opened)
        pauses, commands = sandbox.pauses, sandbox.commands.kept()
        return cls(
            *facts,
            auto_pause_s=pauses.auto_pause_s,
            resume=pauses.resume,
            kills=live.claimed_kills,
            hibernate_s=pauses.hibernate_s,
            id=sandbox.id,
            commands=commands,
        )

    def as_json(self) -> dict[str, Any]:
        """Return them as JSON's values."""
        found: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**found, "commands": [each.as_json() for each in self.commands]}

    @property
    def left_commands(self) -> tuple[KeptCommand, ...]:
        """Commands that an earlier server has kept."""
        return tuple(KeptCommand(**each) for each in self.commands)

    @property
    def left_s(self) -> float:
        """Seconds of its life that are left."""
        return self.ends_at - time.time()


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What an engine has taken over, and what it has not."""

    sandboxes: tuple[AsyncSandbox, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why the others have ended, by id."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why headers of what is stored cannot be read, by id: of hibernated sandboxes, or of
    snapshots."""
    settle: Callable[[], Awaitable[None]] = _nothing
    """Ends what ran in them and was not taken on, and pauses what was paused; to be awaited once,
    after commands were taken on. It returns before all of that is over."""


async def restore_network(sandbox: AsyncSandbox, outside: Outside, facts: Facts) -> str:
    """Give a sandbox its way out again; return why it has none, or nothing.

    Its listeners and their proxy ended with the earlier server, and so did every connection. The
    operator's present settings decide.
    """
    if facts.network is None:
        return ""
    try:
        policy = outside.checked(NetworkPolicy.of(facts.network), facts.trust)
        if facts.is_opened:
            return "its secrets, and the authority of its opened TLS, ended with the server"
        await outside.open(sandbox.live, policy, facts.tenant)
    except CellwallError as error:
        return str(error)
    return ""


async def count_kills(sandbox: AsyncSandbox, found: Found) -> None:
    """Have earlier memory kills explain no later end, after judging what ended meanwhile."""
    for command in sandbox.commands.taken_on:
        found.note_taken_on(command.id)
        if command.attempt.recorder.is_ended:
            with contextlib.suppress(TimeoutError, CellwallError):
                async with asyncio.timeout(_END_S):
                    await command.wait()
    live = sandbox.live
    with contextlib.suppress(OSError):  # it has ended
        live.claimed_kills = max(live.claimed_kills, live.readings().oom_kills)


async def settle(sandbox: AsyncSandbox, found: Found, *, was_paused: bool) -> None:
    """End what was at work for callers of the earlier server, then pause what was paused.

    What a caller uses by now goes on, and so does a command that was taken on.
    """
    await _end_leftovers(sandbox, found)
    if was_paused:
        with contextlib.suppress(CellwallError):  # it has ended
            await sandbox.pause_again()


async def _end_leftovers(sandbox: AsyncSandbox, found: Found) -> None:
    """End what was at work for callers of the earlier server; cells of callers wait meanwhile."""
    if not found.at_work:
        return
    busy = [each.name for each in found.contexts if each.state == "busy"]
    async with contextlib.AsyncExitStack() as turns:
        for name in busy:
            await turns.enter_async_context(sandbox.contexts.alone(name))
        with contextlib.suppress(CellwallError):
            await _end_all(sandbox, found, busy)


async def _end_all(sandbox: AsyncSandbox, found: Found, busy: list[str]) -> None:
    channel = sandbox.live.channel
    for number in found.commands:
        await _end(sandbox, number)
    for name in busy:
        channel.tell("interrupt", context=name)
    if await found.wait_over(_INTERRUPT_S):
        return
    for number, over in found.at_work.items():
        if not over.done():
            await _end(sandbox, number)
    for name in busy:
        await sandbox.contexts.note_ended(name)
    if not await found.wait_over(_END_S):
        sandbox.live.kill("what ran in it when its server ended could not be ended")


async def _end(sandbox: AsyncSandbox, number: int) -> None:
    async with asyncio.timeout(_END_S):
        await sandbox.live.channel.request("end", of=number)
