"""The network of a sandbox: its policy, changed while it runs, its use and its log.

`Outside` belongs to the engine and holds the egress proxy; `SandboxNetwork` is one sandbox's part.
The policy never travels into the sandbox: the proxy decides outside, and what serves inside are
sockets that the host opened there. So it is the same for a sandbox out of the pool.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from cellwall.model.errors import CellwallError, HostUnsupported, UsageError
from cellwall.model.network import MODES, NO_NETWORK, Mode, NetworkPolicy
from cellwall.model.outcome import NetworkUsage, Outcome
from cellwall.runtimes.base import OpensListeners

if TYPE_CHECKING:
    from cellwall.egress.proxy.proxy_process import EgressProxy
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.surface.shared.tasks import Tasks

_log = logging.getLogger("cellwall")

Record = dict[str, Any]
OnRecord = Callable[[str, str, Record], None]
_KEPT = 1000
"""Most records of one sandbox that are kept for `log`, the latest ones."""


class Outside:
    """The ways out of one engine's sandboxes."""

    def __init__(self, settings: EngineSettings, tasks: Tasks) -> None:
        """Start nothing yet."""
        self._settings = settings
        self._tasks = tasks
        self._proxy: EgressProxy | None = None
        self._networks: dict[str, SandboxNetwork] = {}
        self.on_record: OnRecord = lambda _tenant, _sandbox, _record: None
        """Callback with a tenant, the id of its sandbox, and the record of a connection or of a
        refusal."""

    def checked(self, value: object, trust: str | None = None) -> NetworkPolicy:
        """Return the policy that a caller wrote, if the operator allows it; else `UsageError`.

        `trust` is the trust word of the request, which has a widest policy of its own.
        """
        policy = NetworkPolicy.of(value)
        _check_mode(
            policy,
            self._settings.network,
            "the operator allows",
            f"have the operator set CELLWALL_NETWORK={policy.mode}",
        )
        word = None if trust is None else self._settings.trust.get(trust)
        if word is not None:
            remedy = f"have the operator set trust.{trust}.network = {policy.mode!r}"
            _check_mode(policy, word.network, f"trust {trust!r} means", remedy)
        return policy

    async def open(self, live: ClaimedSandbox, policy: NetworkPolicy, tenant: str) -> None:
        """Give a sandbox its way out. Raises HostUnsupported if its runtime cannot have one."""
        network = SandboxNetwork(self, live, policy, tenant)
        await self.serve(network)
        live.network = network
        self._networks[live.spec.sandbox_id] = network

    async def serve(self, network: SandboxNetwork) -> None:
        """Open the listeners in the sandbox and hand them to the proxy."""
        live = network.live
        sandbox = live.runtime_sandbox
        if not isinstance(sandbox, OpensListeners):
            runtime = live.isolation.runtime
            raise HostUnsupported(
                "network",
                f"network: the runtime {runtime!r} cannot give a sandbox one",
                remedy="use isolation='namespace' (runtime 'jail'), or network='none'",
            )
        listeners = await sandbox.open_listeners()
        await self.proxy.add(live.spec.sandbox_id, listeners, network.policy, network.on_lost)

    @property
    def proxy(self) -> EgressProxy:
        """The egress proxy, which starts with its first sandbox."""
        if self._proxy is None:
            # Imported here: most engines never need it.
            from cellwall.egress.proxy.proxy_process import EgressProxy, ProxySettings

            settings = ProxySettings(self._settings.network_addresses, self._settings.name_servers)
            self._proxy = EgressProxy(settings, self.heard)
        return self._proxy

    def heard(self, sandbox: str, record: Record) -> None:
        """Take a record of the proxy."""
        network = self._networks.get(sandbox)
        if network is not None:
            network.take(record)
            self.on_record(network.tenant, sandbox, record)

    def serve_again(self, network: SandboxNetwork) -> None:
        """Give a sandbox its way out again, after the proxy has ended."""
        self._tasks.spawn(self._serve_again(network))

    async def _serve_again(self, network: SandboxNetwork) -> None:
        if not network.live.is_alive or network.policy.is_none:
            return
        try:
            await self.serve(network)
        except CellwallError as error:
            _log.error("sandbox %s has no network: %s", network.live.spec.sandbox_id, error)

    async def close(self, live: ClaimedSandbox) -> None:
        """Take the way out of a sandbox that has ended."""
        network = live.network
        if network is not None and self._proxy is not None:
            await self._proxy.drop(live.spec.sandbox_id)
            self._networks.pop(live.spec.sandbox_id, None)

    async def aclose(self) -> None:
        """End the proxy."""
        if self._proxy is not None:
            await self._proxy.aclose()

    def abandon(self) -> None:
        """Forget the proxy in a forked child."""
        if self._proxy is not None:
            self._proxy.abandon()


class SandboxNetwork:
    """The network of one sandbox that has, or had, a way out."""

    def __init__(
        self, outside: Outside, live: ClaimedSandbox, policy: NetworkPolicy, tenant: str
    ) -> None:
        """Nothing is opened here; `Outside.open` does that."""
        self._outside = outside
        self.live = live
        self.policy = policy
        self.tenant = tenant
        self._open: dict[int, Record] = {}
        """Records of the connections that are open, by their number."""
        self.log: deque[Record] = deque(maxlen=_KEPT)
        self._known = NetworkUsage()
        self._earlier = NetworkUsage()
        """Use that a proxy counted which has ended since."""
        self._told = NetworkUsage()

    def on_lost(self, why: str) -> None:
        """Take note that the proxy has ended, and ask for the way out again."""
        self._earlier = self._known
        lost, self._open = self._open, {}
        for record in lost.values():
            self._outside.heard(self.live.spec.sandbox_id, record | {"event": "lost", "rule": why})
        self.log.append({"event": "proxy_ended", "rule": why})
        self._outside.serve_again(self)

    def take(self, record: Record) -> None:
        """Keep a record of the proxy."""
        self.log.append(record)
        if record["event"] == "open":
            self._open[record["number"]] = record
        elif record["event"] == "close":
            self._open.pop(record["number"], None)

    async def set(self, policy: NetworkPolicy) -> None:
        """Change the policy; connections that it does not allow are closed."""
        await self._outside.proxy.set_policy(self.live.spec.sandbox_id, policy)
        self.policy = policy

    async def usage(self) -> NetworkUsage:
        """Return the use since the start of the sandbox."""
        try:
            counted = await self._outside.proxy.usage(self.live.spec.sandbox_id)
        except CellwallError:
            return self._known  # the proxy has ended; the last that it said
        now, before = NetworkUsage(**counted), self._earlier
        self._known = NetworkUsage(
            before.connections + now.connections,
            before.refused + now.refused,
            before.sent_bytes + now.sent_bytes,
            before.received_bytes + now.received_bytes,
        )
        return self._known

    async def added_to(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the use since the last one."""
        now = await self.usage()
        since, self._told = now.since(self._told), now
        return replace(outcome, usage=replace(outcome.usage, network=since))


def _check_mode(policy: NetworkPolicy, widest: str, whose: str, remedy: str) -> None:
    if [*MODES].index(policy.mode) > [*MODES].index(cast("Mode", widest)):
        raise UsageError(
            f"network: {policy.mode!r} is more than {whose}, which is {widest!r}",
            remedy=f"ask for less, or {remedy}",
        )


async def change(
    outside: Outside, live: ClaimedSandbox, policy: NetworkPolicy, tenant: str
) -> None:
    """Change a sandbox's policy while it runs; one without a way out gets one if it needs it."""
    if live.network is not None:
        await live.network.set(policy)
    elif not policy.is_none:
        await outside.open(live, policy, tenant)


def policy_of(live: ClaimedSandbox) -> NetworkPolicy:
    """Return the policy that a sandbox has now."""
    return NO_NETWORK if live.network is None else live.network.policy
