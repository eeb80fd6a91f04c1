"""Background commands and terminals that go on in the next server (design/0040).

Used by `commands`: this module has what an engine keeps of a command beyond its own end, and how
another one goes on with it. The invariant: a command goes on with the wall time and the processor
time that it has left, and none goes on that an owner does not take on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.attempt import Attempt, Earlier, Work
from cellwall.model.errors import NotFound, SandboxBroken
from cellwall.runtimes.channel.replies import ChannelLost, GuestRefused
from cellwall.runtimes.channel.streams import WINDOW_BYTES

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.parts.commands import Command
    from cellwall.model.outcome import Outcome
    from cellwall.runtimes.channel.replies import Reply

MOST_KEPT = 32
"""Maximum number of commands of one sandbox that are kept: a record is bounded."""
_ANSWER_S = 10.0
_LEAST_LEFT_S = 0.05
_SINCE = "its server was restarted while it ran: `stdout` and `stderr` are what it wrote afterwards"


@dataclass(frozen=True, slots=True)
class KeptCommand:
    """What an engine keeps of a command."""

    number: int
    """Number of its request, by which init knows it."""
    has_terminal: bool
    wall_s: float
    cpu_s: float
    output_bytes: int
    cpu_before_s: float
    """CPU seconds of the sandbox before it started."""
    left_s: float
    """Seconds of its wall time that were left at `at`."""
    at: float | None
    """When that was, in seconds since the epoch; None: its time stands still, it is paused."""
    note: Mapping[str, Any]
    """What its owner keeps of it."""

    @classmethod
    def of(cls, command: Command, note: Mapping[str, Any]) -> KeptCommand | None:
        """Return what is kept of a command; None if it has ended."""
        attempt, clocks = command.attempt, command.attempt.clocks
        if clocks is None or not command.is_running:
            return None
        limits = attempt.work.limits
        return cls(
            number=command.id,
            has_terminal=command.has_terminal,
            wall_s=limits.wall_s,
            cpu_s=limits.cpu_s,
            output_bytes=limits.output_bytes,
            cpu_before_s=clocks.cpu_before_s,
            left_s=clocks.left_s,
            at=None if clocks.is_held else time.time(),
            note=note,
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def left_now_s(self) -> float:
        """Seconds of its wall time that are left now."""
        passed_s = 0.0 if self.at is None else max(0.0, time.time() - self.at)
        return max(_LEAST_LEFT_S, self.left_s - passed_s)

    def work(self, live: ClaimedSandbox, base: Work) -> Work:
        """Return the work that it goes on with; `base` says how a command is stopped."""
        changed = {"wall_s": self.wall_s, "cpu_s": self.cpu_s}
        limits = live.spec.limits.with_changes(changed)
        after = None if self.has_terminal else _say_what_is_missing
        return replace(base, limits=limits, after=after)


async def earlier(live: ClaimedSandbox, kept: KeptCommand) -> Earlier:
    """Return where a kept command stands.

    Init says how much processor time is its own. Without an answer all of the sandbox's counts that
    passed since the command began.
    """
    now_s, before_s = live.read_cpu_s(), kept.cpu_before_s
    try:
        reply = await asked(live, "spent", of=kept.number)
    except GuestRefused:
        return Earlier(kept.number, before_s, kept.left_now_s)
    mine_us = reply.header.get("mine_us")
    if type(mine_us) is int and mine_us >= 0:
        before_s = max(before_s, now_s - mine_us / 1e6)
    return Earlier(kept.number, before_s, kept.left_now_s)


async def begin_again(live: ClaimedSandbox, attempt: Attempt, kept: KeptCommand) -> None:
    """Have init go on with a command for this engine. Raises NotFound, SandboxBroken."""
    try:
        reply = await asked(live, "take_on", of=kept.number, window=WINDOW_BYTES)
    except GuestRefused as refusal:
        raise NotFound(
            f"command {kept.number}: it has ended: {refusal}", remedy="start it again"
        ) from None
    pid, has_terminal = reply.header.get("pid"), reply.header.get("has_terminal")
    if type(pid) is not int or pid < 0 or (pid and has_terminal is not kept.has_terminal):
        live.kill("init did not say what it goes on with")
        raise SandboxBroken("take on: a reply that is none", remedy="create a new sandbox")
    attempt.recorder.pid = pid or None


async def asked(live: ClaimedSandbox, op: str, **fields: Any) -> Reply:  # noqa: ANN401 - JSON
    """Ask init, which answers at once or has the sandbox killed. Raises GuestRefused."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await live.channel.request(op, **fields)
    except TimeoutError:
        live.kill(f"init did not answer within {_ANSWER_S:g} s")
        raise SandboxBroken(f"{op}: init did not answer", remedy="create a new sandbox") from None
    except ChannelLost as lost:
        raise SandboxBroken(f"{op}: {lost}", remedy="create a new sandbox") from lost


async def _say_what_is_missing(_attempt: Attempt, outcome: Outcome) -> Outcome:
    return replace(outcome, notes=(*outcome.notes, _SINCE))
