"""Hibernated sandboxes of an earlier engine, which this one goes on with (design/0051).

Called by `arriving`, before the first request. Nothing is loaded and nothing is started: each is an
object without processes, as it was before its engine ended, and the next request that needs its
inside wakes it. The invariant: an image is gone on with or removed, unless it is another engine's,
or its header cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.engine.attempts.no_processes import NoProcesses
from cellwall.engine.policy.pause_choice import PauseChoice, check_choice
from cellwall.engine.state.stored_image import StoredImage
from cellwall.model.errors import CellwallError, SandboxUnavailable
from cellwall.model.network import NetworkPolicy
from cellwall.model.template import BuiltTemplate, Template
from cellwall.runtimes.base import SandboxSpec

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.policy.selection import Runtimes
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.state.durable import DurableSnapshots
    from cellwall.engine.state.snapshot_header import Header
    from cellwall.runtimes.base import Runtime
    from cellwall.surface.tools.tools import Offer

Hold = Callable[
    [ClaimedSandbox, "Runtime", "Offer | None", tuple[str, PauseChoice]], "AsyncSandbox"
]


@dataclass(slots=True)
class Slept:
    """What was found."""

    sandboxes: list[AsyncSandbox] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Why others have ended, by id; their images are gone."""
    unread: dict[str, str] = field(default_factory=dict)
    """Why the headers of others cannot be read, by id; they may be of snapshots."""


class Sleepers:
    """Makes sandboxes of what is stored."""

    def __init__(
        self, engine: Engine, runtimes: Runtimes, hold: Hold, *, are_kept_later: bool
    ) -> None:
        """`hold` makes a claimed sandbox one of the engine's.

        `are_kept_later`: whether they outlive the engine with their processes, too.
        """
        self._are_kept_later = are_kept_later
        self._engine = engine
        self._runtimes = runtimes
        self._hold = hold

    def take_over(self, durable: DurableSnapshots, living: Collection[str]) -> Slept:
        """Go on with all but those that are alive with their processes: these are as late."""
        headers, unread = durable.asleep()
        found = Slept(unread=unread)
        for header in headers:
            if header.id in living:
                durable.remove(header.id)
                continue
            try:
                found.sandboxes.append(self._arrived(durable, header))
            except (CellwallError, KeyError, TypeError, ValueError) as error:
                found.refused[header.id] = _reason(error)
                durable.remove(header.id)
        return found

    def _arrived(self, durable: DurableSnapshots, header: Header) -> AsyncSandbox:
        """Return the sandbox of a header. Raises what says why it cannot go on."""
        stored = StoredImage(durable, header)
        asleep, pauses = stored.asleep, self._pauses(header)
        if time.time() - asleep.since + asleep.used_s >= pauses.paused_s:
            raise SandboxUnavailable(f"it was paused for {pauses.paused_s:g} s")
        runtime = self._runtimes.get(header.runtime)
        policy = NetworkPolicy.of(header.network)
        last = asleep.read()
        live = ClaimedSandbox(NoProcesses(asleep.isolated(), last), _spec(header), last)
        live.asleep, live.trust = last, header.trust
        if not policy.is_none:
            self._engine.outside.know(live, policy, header.tenant)
        stored.budget = durable.hold(header)
        sandbox = self._hold(live, runtime, None, (header.tenant, pauses))
        sandbox.sleep_on(stored, is_kept_later=self._are_kept_later)
        return sandbox

    def _pauses(self, header: Header) -> PauseChoice:
        settings = self._engine.settings
        return check_choice(header.auto_pause_s, header.resume, settings, header.hibernate_s)


def _spec(header: Header) -> SandboxSpec:
    """Return what it was started as, as far as it is shown; what it wakes as is `revival`'s."""
    facts = header.spec
    named = BuiltTemplate(
        Template(header.template), header.template_digest, "", "", "", (), size_bytes=0
    )
    return SandboxSpec(
        header.id,
        named,
        header.limits,
        contexts=tuple(facts["contexts"]),
        language=facts["language"],
        demand_hard=facts["demand_hard"],
        start=facts["start"],
        profile=facts["profile"],
        has_network=facts["has_network"],
    )


def _reason(error: Exception) -> str:
    if isinstance(error, CellwallError):
        return error.message
    return f"what was stored of it cannot be read: {type(error).__name__}: {error}"
