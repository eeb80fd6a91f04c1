"""The network of a sandbox: its policy, changed while it runs, its use and its log.

`Outside` belongs to the engine and holds the egress proxy; `SandboxNetwork` is one sandbox's part.
The policy never travels into the sandbox: the proxy decides outside, and what serves inside are
sockets that the host opened there. So it is the same for a sandbox out of the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from cellwall.engine.parts import trust
from cellwall.model.errors import CellwallError, SandboxBroken, UsageError
from cellwall.model.network import BROKER, MODES, NO_NETWORK, Mode, NetworkPolicy
from cellwall.model.outcome import NetworkUsage, Outcome
from cellwall.runtimes.base import OpensListeners, no_network
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.egress.proxy.proxy_process import EgressProxy
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.parts.package_registries import Registries
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.model.packages import PackagePolicy
    from cellwall.model.secret import Secret
    from cellwall.runtimes.base import SandboxSpec

_log = logging.getLogger("cellwall")

_NETWORK_ENV = dict.fromkeys(
    (
        "PIP_INDEX_URL",
        "PIP_RETRIES",
        "UV_DEFAULT_INDEX",
        "UV_HTTP_RETRIES",
        "npm_config_registry",
        "npm_config_fetch_retries",
    ),
    "",  # as if it were not set
)
"""In place of the variables with which package managers fail at once without a network."""
PACKAGES_ENV = {
    "PIP_INDEX_URL": f"http://{BROKER}/simple/",
    "PIP_TRUSTED_HOST": BROKER,
    "PIP_RETRIES": "1",
    "UV_DEFAULT_INDEX": f"http://{BROKER}/simple/",
    "UV_HTTP_RETRIES": "1",
    "npm_config_registry": f"http://{BROKER}/npm/",
    # Lock files that were written elsewhere name another registry.
    "npm_config_replace_registry_host": "always",
    "npm_config_fetch_retries": "1",
}
"""Variables by which pip, uv and npm ask the package broker."""

Record = dict[str, Any]
OnRecord = Callable[[str, str, Record], None]
_KEPT = 1000
"""Most records of one sandbox that are kept for `log`, the latest ones."""
_MOST_TIMES_LOST = 5
"""How often a sandbox gets its way out again; its own traffic may be what ends the proxy."""


class Outside:
    """The ways out of one engine's sandboxes."""

    def __init__(self, settings: EngineSettings, tasks: Tasks, state_dir: Path) -> None:
        """Start nothing yet."""
        self._settings = settings
        self._state_dir = state_dir
        self._registries: Registries | None = None
        self._tasks = tasks
        self._proxy: EgressProxy | None = None
        self._networks: dict[str, SandboxNetwork] = {}
        self._closings = Tasks()
        self.on_record: OnRecord = lambda _tenant, _sandbox, _record: None
        """Callback with a tenant, the id of its sandbox, and the record of a connection or of a
        refusal."""

    def checked(self, value: object, trust: str | None = None) -> NetworkPolicy:
        """Return the policy that a caller wrote, if the operator allows it; else `UsageError`.

        `trust` is the trust word of the request, which has a widest policy of its own.
        """
        policy = NetworkPolicy.of(value)
        if policy.packages is not None:
            policy = replace(policy, packages=self._packages(policy.packages))
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

    def check_packages(self) -> PackagePolicy:
        """Return all that the operator allows to install; `UsageError` if that is nothing."""
        from cellwall.model.packages import ANY_PACKAGE

        return self._packages(ANY_PACKAGE)

    def _packages(self, asked: PackagePolicy) -> PackagePolicy:
        from cellwall.model.packages import PackagePolicy

        found = asked.narrowed(PackagePolicy.of(self._settings.packages))
        if found.is_none:
            raise UsageError(
                "packages: none may be installed here",
                remedy="have the operator set CELLWALL_PACKAGES=any, or what may be installed",
            )
        return found

    async def serve_packages(self) -> None:
        """Have a package broker, whose registries are found at the first call. HostUnsupported."""
        # Imported here: most engines never need it.
        from cellwall.egress.proxy.proxy_process import PackageSource
        from cellwall.engine.parts.package_registries import Registries

        if self._registries is None:
            self._registries = Registries(self._settings, self._state_dir)
        await self.proxy.serve_packages(PackageSource(*await self._registries.handed()))

    async def open(
        self,
        live: ClaimedSandbox,
        policy: NetworkPolicy,
        tenant: str,
        opened: Sequence[Secret] | None = None,
    ) -> None:
        """Give a sandbox its way out. Raises HostUnsupported if its runtime cannot have one.

        TLS is opened for `opened` secrets, and where a rule looks at requests; None: never.
        """
        network = SandboxNetwork(self, live, policy, tenant, opened)
        # Known before it is served: what the proxy says of it may come at once.
        live.network = self._networks[live.spec.sandbox_id] = network
        try:
            await network.serve()
        except BaseException:
            live.network = None
            del self._networks[live.spec.sandbox_id]
            raise

    @contextlib.asynccontextmanager
    async def installing(self, live: ClaimedSandbox, tenant: str) -> AsyncIterator[None]:
        """Have the package broker on for a sandbox, as far as the operator allows, meanwhile.

        Raises UsageError, HostUnsupported.
        """
        packages = self.check_packages()
        if live.network is None:
            await self.open(live, NO_NETWORK, tenant)
        async with self._networks[live.spec.sandbox_id].lent(packages):
            yield

    @property
    def proxy(self) -> EgressProxy:
        """The egress proxy, which starts with its first sandbox."""
        if self._proxy is None:
            # Imported here: most engines never need it.
            from cellwall.egress.proxy.proxy_process import EgressProxy, ProxySettings

            settings = ProxySettings(
                self._settings.network_addresses,
                self._settings.name_servers,
                self._settings.network_authorities,
            )
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
        self._tasks.spawn(network.serve_again())

    def close(self, live: ClaimedSandbox) -> None:
        """Take the way out of a sandbox that has ended, in the background."""
        if live.network is not None:
            self._closings.spawn(self._close(live.spec.sandbox_id))

    def know(self, live: ClaimedSandbox, policy: NetworkPolicy, tenant: str) -> None:
        """Know the policy of a hibernated sandbox, whose way out is opened when it comes back."""
        network = SandboxNetwork(self, live, policy, tenant, None)
        live.network = self._networks[live.spec.sandbox_id] = network

    def put_down(self, live: ClaimedSandbox) -> None:
        """Close the way out of a sandbox whose processes end for a while, in the background."""
        network = self._networks.get(live.spec.sandbox_id)
        if network is not None:
            self._closings.spawn(network.put_down())

    async def bring_back(self, live: ClaimedSandbox) -> None:
        """Open it again, in the processes that the sandbox has now. Raises as `open`."""
        network = self._networks.get(live.spec.sandbox_id)
        if network is not None:
            await network.bring_back()

    async def _close(self, sandbox: str) -> None:
        network = self._networks.get(sandbox)
        if network is not None:
            await network.close()
            self._networks.pop(sandbox, None)

    async def wait_closed(self) -> None:
        """Return when what ended sandboxes did is on record, and their listeners are closed."""
        await self._closings.wait_empty()

    async def aclose(self) -> None:
        """End the proxy, once it has told all of ended sandboxes."""
        await self.wait_closed()
        if self._proxy is not None:
            await self._proxy.aclose()

    def abandon(self) -> None:
        """Forget the proxy in a forked child."""
        if self._proxy is not None:
            self._proxy.abandon()


class SandboxNetwork:
    """The network of one sandbox that has, or had, a way out."""

    def __init__(
        self,
        outside: Outside,
        live: ClaimedSandbox,
        policy: NetworkPolicy,
        tenant: str,
        opened: Sequence[Secret] | None,
    ) -> None:
        """Nothing is opened here; `Outside.open` does that."""
        self._outside = outside
        self.live = live
        self.policy = policy
        self.tenant = tenant
        self._opened = opened
        self._id = live.spec.sandbox_id
        self._changing = asyncio.Lock()
        self._lent: PackagePolicy | None = None
        self._installations = 0
        self._times_lost = 0
        self._open: dict[int, Record] = {}
        """Records of the connections that are open, by their number."""
        self.log: deque[Record] = deque(maxlen=_KEPT)
        self._known = NetworkUsage()
        self._earlier = NetworkUsage()
        """Use that a proxy counted which has ended since."""
        self._told = NetworkUsage()

    @property
    def is_opened(self) -> bool:
        """Whether TLS is opened in it, or secrets are put into requests."""
        return self._opened is not None

    async def serve(self) -> None:
        """Open the listeners in the sandbox and hand them to the proxy, unless it serves them."""
        async with self._changing:
            await self._serve()

    async def _serve(self, *, is_again: bool = False) -> None:
        """Serve by the policy in force; where it `is_again`, with or without a package broker."""
        sandbox, proxy = self.live.runtime_sandbox, self._outside.proxy
        if proxy.serves(self._id):
            return
        self.live.check_alive()  # after `close` nothing would drop it again
        if not isinstance(sandbox, OpensListeners):
            raise no_network(self.live.isolation.runtime)
        await proxy.start()  # after the end of the one before, which had the same ports
        policy = self._in_force()
        if policy.packages is not None and not is_again:
            await self._outside.serve_packages()
        listeners = await sandbox.open_listeners()
        certificate = await proxy.add(self._id, listeners, policy, self.on_lost, self._opened)
        if self._opened is not None:  # each proxy process makes an authority of its own
            await trust.install(self.live, certificate)

    async def close(self) -> None:
        """Have the proxy serve it no longer, once what is being changed is done."""
        async with self._changing:
            await self._outside.proxy.drop(self._id)
            self.lose_open("the egress proxy had ended before the sandbox")

    async def put_down(self) -> None:
        """Have the proxy serve it no longer; what it counted stays."""
        async with self._changing:
            counted = await self._outside.proxy.drop(self._id)
            if counted:
                self._note(counted)
            self._earlier = self._known
            self.lose_open("the sandbox was hibernated")

    async def bring_back(self) -> None:
        """Serve it again in other processes, if its policy leads anywhere."""
        if not self._in_force().is_none:
            await self.serve()

    def _in_force(self) -> NetworkPolicy:
        """Return the sandbox's own policy, with packages while its caller installs some."""
        if self._lent is None or self.policy.packages is not None:
            return self.policy
        return replace(self.policy, packages=self._lent)

    @contextlib.asynccontextmanager
    async def lent(self, packages: PackagePolicy) -> AsyncIterator[None]:
        """Have packages on meanwhile, whatever the sandbox's policy."""
        self._installations += 1
        self._lent = packages
        try:
            await self.set(self.policy)
            yield
        finally:
            self._installations -= 1
            if not self._installations:
                self._lent = None
                await asyncio.shield(self._take_back())

    async def _take_back(self) -> None:
        """Turn the lent packages off again; a sandbox that may still have them is killed."""
        try:
            await self.set(self.policy)
        except Exception as error:  # noqa: BLE001 - doubt destroys
            if self.live.is_alive and self._outside.proxy.serves(self._id):
                self.live.kill(f"the packages that it was lent could not be turned off: {error}")

    def on_lost(self, why: str) -> None:
        """Take note that the proxy has ended, and ask for the way out again."""
        self._earlier = self._known
        self.lose_open(why)
        self.log.append({"event": "proxy_ended", "rule": why})
        self._times_lost += 1
        if self._times_lost <= _MOST_TIMES_LOST:
            self._outside.serve_again(self)
        else:
            _log.error("sandbox %s has no network any more: %s", self._id, why)

    def lose_open(self, why: str) -> None:
        """Report the connections that were open, of whose end nothing is known."""
        lost, self._open = self._open, {}
        for record in lost.values():
            self._outside.heard(self._id, record | {"event": "lost", "rule": why})

    async def serve_again(self) -> None:
        """Give the sandbox its way out again, if it still wants one."""
        if not self.live.is_alive or self._in_force().is_none or self.live.asleep is not None:
            return
        try:
            async with self._changing:
                await self._serve(is_again=True)
        except CellwallError as error:
            _log.error("sandbox %s has no network: %s", self._id, error)

    def take(self, record: Record) -> None:
        """Keep a record of the proxy."""
        self.log.append(record)
        if record["event"] == "open":
            self._open[record["number"]] = record
        elif record["event"] == "close":
            self._open.pop(record["number"], None)

    async def set(self, policy: NetworkPolicy) -> None:
        """Change the policy; connections that it does not allow are closed.

        One change after the other: what is served is always by the last one. Raises `UsageError`
        for one that opens TLS in a sandbox that was made without trust in its proxy.
        """
        if self._opened is None:
            trust.check_without(policy)
        async with self._changing:
            before, self.policy = self.policy, policy
            try:
                await self._apply()
            except BaseException:
                self.policy = before
                raise
            if not self._in_force().is_none:
                await self._serve()

    async def _apply(self) -> None:
        """Tell the proxy of the policy in force, if it serves the sandbox."""
        proxy, policy = self._outside.proxy, self._in_force()
        if not proxy.serves(self._id):
            return
        if policy.packages is not None:
            await self._outside.serve_packages()
        try:
            await proxy.set_policy(self._id, policy)
        except SandboxBroken:
            if proxy.serves(self._id):
                raise  # it has not ended: it could not do it

    async def usage(self) -> NetworkUsage:
        """Return the use since the start of the sandbox."""
        try:
            counted = await self._outside.proxy.usage(self._id)
        except CellwallError:
            return self._known  # the proxy has ended; the last that it said
        self._note(counted)
        return self._known

    def _note(self, counted: Mapping[str, int]) -> None:
        """Note what the proxy has counted since it serves the sandbox."""
        now, before = NetworkUsage(**counted), self._earlier
        self._known = NetworkUsage(
            before.connections + now.connections,
            before.refused + now.refused,
            before.sent_bytes + now.sent_bytes,
            before.received_bytes + now.received_bytes,
        )

    async def added_to(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the use since the last one."""
        now = await self.usage()
        since, self._told = now.since(self._told), now
        return replace(outcome, usage=replace(outcome.usage, network=since))


def with_way_out(
    spec: SandboxSpec, policy: NetworkPolicy, *, needs_one: bool = False
) -> SandboxSpec:
    """Return what a sandbox with that policy is started as.

    `needs_one`: it gets a way out also where the policy leads nowhere.
    """
    if policy.is_none:
        return spec if spec.has_network == needs_one else replace(spec, has_network=needs_one)
    own = _NETWORK_ENV if policy.packages is None else PACKAGES_ENV
    return replace(spec, has_network=True, own_env=own, env={**own, **spec.env})


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
        trust.check_without(policy)
        await outside.open(live, policy, tenant)


def policy_of(live: ClaimedSandbox) -> NetworkPolicy:
    """Return the policy that a sandbox has now."""
    return NO_NETWORK if live.network is None else live.network.policy
