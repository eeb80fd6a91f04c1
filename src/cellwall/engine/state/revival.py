"""What a snapshot of an ended engine is restored with: checked again, by this engine's settings.

Called by `copies` before a byte of a session is read. The operator may have changed what is
allowed meanwhile: the network, the runtimes, the isolation that a tenant must have, the template.
The invariant: what a new sandbox would be refused is refused here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cellwall.engine.policy.arguments import check_profile, check_start
from cellwall.engine.policy.levels import Floor, IsolationRequest
from cellwall.engine.policy.pause_choice import check_choice
from cellwall.engine.state.copies import Heritage
from cellwall.model.errors import Conflict, UsageError
from cellwall.model.network import NetworkPolicy
from cellwall.runtimes.base import SandboxSpec

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.policy.selection import Runtimes
    from cellwall.engine.state.snapshot_header import Header
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.base import Runtime


class Reviver(NamedTuple):
    """The engine as `revive` needs it."""

    engine: Engine
    runtimes: Runtimes

    async def revive(self, header: Header, floor: Floor) -> tuple[Runtime, Heritage]:
        """Return what a stored session's sandboxes have besides memory and files.

        Raises Conflict, UsageError, HostUnsupported with what this engine does not allow.
        """
        if header.refusal:
            raise Conflict(
                f"restore: {header.called}: {header.refusal}",
                remedy="give the engine the key that it was made with (snapshots_key_file)",
            )
        runtime = await self._runtime(header, floor)
        settings, outside = self.engine.settings, self.engine.outside
        policy = outside.checked(NetworkPolicy.of(header.network), header.trust)
        pauses = check_choice(header.auto_pause_s, header.resume, settings, header.hibernate_s)
        facts = dict(header.spec)
        spec = SandboxSpec(
            "",
            await self._template(header),
            header.limits,
            contexts=tuple(facts["contexts"]),
            language=facts["language"],
            env=dict(header.private["env"]),
            own_env=dict(header.private["own_env"]),
            demand_hard=facts["demand_hard"],
            start=check_start(facts["start"]),
            profile=check_profile(facts["profile"], settings.profiles),
            has_network=facts["has_network"],
        )
        return runtime, Heritage(spec, policy, header.trust, None, header.tenant, pauses)

    async def _runtime(self, header: Header, floor: Floor) -> Runtime:
        if header.trust is not None:
            wanted = self.runtimes.demand(IsolationRequest(trust=header.trust, floor=floor))
            if self.runtimes.get(header.runtime).level < wanted.level:
                raise UsageError(
                    f"restore: trust {header.trust!r} means isolation {wanted.level.label!r} here",
                    remedy="create a new sandbox, and load into it what it needs",
                )
        level = self.runtimes.get(header.runtime).level.label
        return await self.runtimes.choose(IsolationRequest(level, header.runtime, None, floor))

    async def _template(self, header: Header) -> BuiltTemplate:
        built = await self.engine.template(header.template)
        # Files go into any sandbox of the template, as they would into one that booted.
        if header.has_session and built.digest != header.template_digest:
            raise Conflict(
                f"restore: the template {header.template!r} is another than that of "
                f"{header.called}",
                remedy="build the template as it was, or make a new snapshot",
            )
        return built
