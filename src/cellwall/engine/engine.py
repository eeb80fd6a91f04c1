"""The engine: one state directory, its templates, runtimes, pool and live sandboxes.

The interfaces (library, command line, server) make one engine per process and event loop and call
it; only the engine combines template, runtime, pool and sandbox. The invariant: a claimed sandbox
is destroyed whatever happens, and `aclose` returns only when nothing of this engine is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.engine.attempts.attempt import BeforeCode, OnEvent, OnStart
from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.engine.parts.network import Outside, with_way_out
from cellwall.engine.parts.roots import on_image, with_volumes
from cellwall.engine.parts.trust import Egress, FindSecrets, no_stored_secrets
from cellwall.engine.policy.arguments import (
    check_env,
    check_limits,
    check_profile,
    check_start,
    offered,
)
from cellwall.engine.policy.levels import NO_FLOOR, Floor, IsolationRequest
from cellwall.engine.policy.pause_choice import check_choice
from cellwall.engine.policy.selection import Runtimes
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.programs.programs import Host, Programs, Watch
from cellwall.engine.programs.requests import Request
from cellwall.engine.scheduling.exhaustion import instead_of
from cellwall.engine.scheduling.pool import Pool, PoolStatistics
from cellwall.engine.state.disk_budget import DiskBudget
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import CellwallError, Conflict, HostUnsupported
from cellwall.model.execution import Execution
from cellwall.model.ids import accepted_id
from cellwall.runtimes.base import RuntimeGone, RuntimeStatistics, SandboxSpec, SweepReport
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.engine.history.room import HistoryRoom
    from cellwall.engine.images.image_store import ImageStore
    from cellwall.engine.packages.kept import KeptInstallations
    from cellwall.engine.parts.kept import Arrivals
    from cellwall.engine.policy.pause_choice import PauseChoice
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.state.copies import Copies, Heritage
    from cellwall.engine.state.copy_counts import CopyStatistics
    from cellwall.engine.volumes.volume_store import VolumeStore
    from cellwall.model.limits import Limits
    from cellwall.model.template import BuiltTemplate, Template
    from cellwall.runtimes.base import AheadOfEngine, Finding, Runtime
    from cellwall.runtimes.roots import ImageRoot
    from cellwall.surface.tools.tools import Offer, Tools


class Templates(Protocol):
    """The engine's view of a template store."""

    def definitions(self) -> dict[str, Template]:
        """Return the known templates by name."""

    def find(self, name: str) -> BuiltTemplate | None:
        """Return the built template, or None when it is not built; `NotFound` if unknown."""

    def build(self, name: str) -> BuiltTemplate:
        """Build the template and return it."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts for `/stats`, the console and tests."""

    runs: int
    sandboxes: int
    paused: int
    """Number of the sandboxes that are paused."""
    hibernated: int
    """Number of the sandboxes that are hibernated."""
    hibernated_bytes: int
    """Bytes of disk that these take."""
    background_failures: int
    pool: PoolStatistics
    copies: CopyStatistics
    runtimes: Mapping[str, RuntimeStatistics]


class Engine:
    """One engine; see the module. Create it on the event loop that it is used on."""

    def __init__(  # noqa: PLR0913 - each is an option of its own
        self,
        directory: Path | None = None,
        settings: EngineSettings | None = None,
        *,
        templates: Templates | None = None,
        answers_first: bool = False,
        head_start: AheadOfEngine | None = None,
        keeps_sandboxes: bool = False,
        keeps_hibernated: bool = False,
    ) -> None:
        """Touch nothing yet; `templates` replaces the store of the state directory.

        With `keeps_sandboxes` sessions outlive this process, where their runtime can do that, and
        the engine takes over those of an earlier one when `take_over` is called. With
        `keeps_hibernated` so do hibernated sandboxes, if there is a `snapshots_dir`.

        With `answers_first` the first programs do not wait for what only pays with many: a jail
        prepares that behind them. `head_start`: what `engine.head_start` has begun; it ends with
        this engine.
        """
        self.state_dir = directory or state_dir()
        self.settings = settings or EngineSettings.from_environment()
        self._templates: Templates = templates or TemplateStore(self.state_dir)
        self._built: dict[str, BuiltTemplate] = {}
        self._building = asyncio.Lock()
        self._keeps_sandboxes = keeps_sandboxes
        self._keeps_hibernated = keeps_hibernated
        self._runtimes = Runtimes(
            self.state_dir,
            self.settings,
            answers_first=answers_first,
            head_start=head_start,
            keeps_sandboxes=keeps_sandboxes,
        )
        self._pool = Pool(self.settings)
        self._tasks = Tasks()
        self.outside = Outside(self.settings, self._tasks, self.state_dir)
        """Ways out of this engine's sandboxes."""
        self.copies_room = DiskBudget(self.settings.snapshots_mb << 20)
        """Room for its sessions that are written down, for forks and as snapshots."""
        self._sandboxes: dict[str, AsyncSandbox] = {}
        self._programs = Programs(self._host())
        self._callers = 0
        self._no_caller = asyncio.Event()
        self._no_caller.set()
        self._is_open = True
        self.find_secrets: FindSecrets = no_stored_secrets
        """How secrets are found that a request names; a server with a store has some."""
        self.on_taken_out: Callable[[str, str], None] = lambda _name, _reason: None
        """Callback with the name of a runtime that broke while it was in use, and the reason; the
        runtime is probed anew."""

    def _host(self) -> Host:
        """Return this engine as its programs need it."""
        return Host(
            settings=self.settings,
            compiled=self.state_dir / "compiled",
            outside=self.outside,
            template=self.template,
            choose=self._runtimes.choose,
            claim=self._claim,
            release=self._release,
            install=self._install,
            check_open=self._check_open,
            check_packages=self.check_packages,
            images=lambda: self.images,
            volumes=lambda: self.volumes,
        )

    # -- parts -----------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """The warm pool."""
        return self._pool

    async def runtime(self, isolation: str | None = None, name: str | None = None) -> Runtime:
        """Return the runtime that would serve such a request."""
        return await self._runtimes.choose(IsolationRequest(isolation, name))

    def check_isolation(self, request: IsolationRequest) -> None:
        """Raise `UsageError` if no host could meet the isolation that `request` demands."""
        self._runtimes.demand(request)

    def check_packages(self, packages: Sequence[str]) -> tuple[str, ...]:
        """Return the requirements to install; `UsageError` if one is none, or none is allowed."""
        if not packages:
            return ()
        self.outside.check_packages()
        from cellwall.engine.packages.installing import checked  # most programs install nothing

        return checked(packages)

    async def probe(self, name: str) -> tuple[Runtime, list[Finding]]:
        """Return the runtime called `name` and its findings on this host."""
        runtime = self._runtimes.get(name)
        return runtime, await runtime.probe()

    async def template(self, name: str) -> BuiltTemplate:
        """Return a built template; the first use builds it, which takes a while."""
        built = self._built.get(name)
        if built is None:
            async with self._building:
                built = await asyncio.to_thread(self._find_or_build, name)
                self._built[name] = built
        return built

    def check_template(self, name: str) -> None:
        """Raise NotFound unless the operator has a template of that name, built or not."""
        if name not in self._built:
            self._templates.find(name)

    def _find_or_build(self, name: str) -> BuiltTemplate:
        return self._templates.find(name) or self._templates.build(name)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Conflict("engine: it is closed", remedy="make a new one")

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Count a call that may claim a sandbox: `aclose` waits until the call has released it."""
        self._check_open()
        self._callers += 1
        self._no_caller.clear()
        try:
            yield
        finally:
            self._callers -= 1
            if not self._callers:
                self._no_caller.set()

    # -- one-shot --------------------------------------------------------------------------

    async def run(self, code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - fields of Request
        """Run `code` once in a fresh sandbox; options are the fields of `requests.Request`."""
        try:
            return await self.execute(Request(code, **options), on_event)
        finally:
            await self._runtimes.end_head_start()  # it was for the first program

    async def execute(
        self,
        request: Request,
        on_event: OnEvent | None = None,
        on_start: OnStart | None = None,
        before_code: BeforeCode | None = None,
    ) -> Execution:
        """Run one request; the sandbox is destroyed after the answer.

        `before_code` is awaited between the claim of a sandbox and the first line of the caller's
        code in it; an exception from it ends the request before anything has run. It is awaited
        again for another sandbox, if the first one ended before the program began.
        """
        with self._calling():
            policy = self.outside.checked(request.network, request.trust)
            secrets = await self._secrets(request.secrets, request.tenant)
            egress = Egress.of(policy, secrets, request.env or {})
            watch = Watch(on_event, on_start, before_code, request.trust, egress)
            return await self._programs.execute(request, watch)

    async def _secrets(self, given: object, tenant: str) -> object:
        """Return secrets with those of a store in the place of their names."""
        if not isinstance(given, (list, tuple)):
            return given
        names = [each for each in given if isinstance(each, str)]
        if not names:
            return given
        stored = await self.find_secrets(tenant, names)
        return [*stored, *(each for each in given if not isinstance(each, str))]

    async def _claim(self, runtime: Runtime, spec: SandboxSpec) -> ClaimedSandbox:
        """Return a sandbox; raise `CapacityError` if the host has run out of a resource."""
        try:
            return await self._pool.claim(runtime, spec)
        except RuntimeGone as error:
            self._runtimes.take_out(runtime)
            self.on_taken_out(runtime.name, error.message)
            raise
        except (CellwallError, OSError, RuntimeError) as error:
            meant = instead_of(error)
            if meant is error:
                raise
            raise meant from error

    # -- sandboxes -------------------------------------------------------------------------

    async def create_sandbox(  # noqa: PLR0913 - each is an option of its own
        self,
        template: str = "python",
        limits: Limits | Mapping[str, Any] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        runtime: str | None = None,
        isolation: str | None = None,
        trust: str | None = None,
        demand_hard: bool = False,
        start: str = "fork",
        profile: str = "default",
        floor: Floor = NO_FLOOR,
        tools: Tools | None = None,
        network: object = None,
        secrets: object = None,
        packages: Sequence[str] = (),
        image: str | ImageRoot | None = None,
        user: str | None = None,
        volumes: object = None,
        auto_pause_s: float | None = None,
        hibernate_s: float | None = None,
        resume: str = "auto",
        tenant: str = "",
        sandbox_id: str = "",
    ) -> AsyncSandbox:
        """Return a live sandbox; its owner closes it, or its idle time or lifetime ends.

        `isolation` is a level, None for the operator's default; `trust` (`untrusted`, `semi`,
        `trusted`) stands for one. `floor` is the operator's demand on this tenant. `tools`:
        functions of this process that its Python code may call as `tools.name(…)`. `network`:
        what `NetworkPolicy.of` takes, such as `["example.org"]`; None is no network. `secrets`:
        what `secrets_of` takes, a list of `Secret`, whose values never enter the sandbox, or
        names of stored ones. `image`: what `images.reference.parse` takes, such as
        `./task.tar`; its tree is the root then, and `user` one of its users, by default the
        image's own. `volumes`: what `model.volume.mounts_of` takes, such as `{"data": "/data"}`
        or `["data:/data:ro"]`, of volumes that exist. `profile`: `debug` if its programs may trace
        one another, where the operator permits it. `packages`: Python packages to install
        first, such as `["requests"]`. `auto_pause_s`: seconds without activity after which it
        pauses instead of ending, at most the limit `idle_s`. `hibernate_s`: seconds of a pause
        after which its session is written to disk and its processes end, as far as nothing is
        lost; None is the operator's choice. `resume`: `auto` if a request to a paused one resumes
        it, `manual` if it is refused. `tenant`: whose it is, for the records of its connections.
        `sandbox_id`: an unused id that it gets (`accepted_id`); empty is a fresh one.
        """
        pauses = check_choice(auto_pause_s, resume, self.settings, hibernate_s)
        box = offered(tools)
        wanted = self.check_packages(packages)
        policy = self.outside.checked(network, trust)
        egress = Egress.of(policy, await self._secrets(secrets, tenant), env or {})
        with self._calling():
            found = check_limits(limits, None, self.settings.limits)
            built = await self.template(template)
            chosen = await self._runtimes.choose(IsolationRequest(isolation, runtime, trust, floor))
            spec = SandboxSpec(
                accepted_id(sandbox_id, self.settings.node),
                built,
                found,
                env=egress.variables | check_env(env or {}),
                demand_hard=demand_hard,
                start=check_start(start),
                profile=check_profile(profile, self.settings.profiles),
            )
            async with on_image(lambda: self.images, spec, image, user, wanted) as rooted:
                spec = with_volumes(lambda: self.volumes, rooted, volumes, tenant)
                spec = with_way_out(spec, policy, needs_one=bool(wanted))
                live = await self._claim(chosen, spec)
            live.trust = trust
            live.be_called(sandbox_id)
            if spec.has_network:
                await self._opened(live, chosen, egress, wanted, tenant)
            if auto_pause_s is not None or hibernate_s is not None:
                self._check_pausing(live, chosen, hibernates=hibernate_s is not None)
            return await self._made(live, chosen, box, (tenant, pauses))

    async def _made(
        self,
        live: ClaimedSandbox,
        runtime: Runtime,
        box: Offer | None,
        owner: tuple[str, PauseChoice],
    ) -> AsyncSandbox:
        """Return a claimed sandbox as the one that its owner holds, kept if this engine keeps."""
        sandbox = self._held(live, runtime, box, owner)
        if self._keeps_sandboxes:
            try:
                sandbox.keep()
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    def _held(
        self,
        live: ClaimedSandbox,
        runtime: Runtime,
        box: Offer | None,
        owner: tuple[str, PauseChoice],
    ) -> AsyncSandbox:
        """Return a claimed sandbox as the one that its owner holds."""
        from cellwall.engine.sandbox import AsyncSandbox, EngineParts  # a single program needs none

        parts = EngineParts(self._tasks, self.outside, lambda: self.copies)
        tenant, pauses = owner
        released, share = partial(self._released, runtime), self.history_room.of(tenant)
        sandbox = AsyncSandbox(live, parts, released, box, share, pauses)
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    @cached_property
    def copies(self) -> Copies:
        """The forks and snapshots of this engine's sandboxes."""
        from cellwall.engine.state.making import copies_of  # most engines copy none

        found = partial(copies_of, self, self._runtimes, keeps_hibernated=self._keeps_hibernated)
        return found(self._claim_copy, self._adopt_copy, self._release)

    async def _claim_copy(self, runtime: Runtime, spec: SandboxSpec) -> ClaimedSandbox:
        with self._calling():
            return await self._claim(runtime, spec)

    async def _adopt_copy(
        self, live: ClaimedSandbox, runtime: Runtime, heritage: Heritage
    ) -> AsyncSandbox:
        """Make a claimed sandbox that has become a copy one that its owner holds, or destroy it."""
        try:
            self._check_open()
        except BaseException:
            self._release(live, runtime)
            raise
        with self._calling():
            live.trust = heritage.trust
            if live.spec.has_network and not heritage.policy.is_none:
                egress = Egress.of(heritage.policy, None, {})
                await self._opened(live, runtime, egress, (), heritage.tenant)
            return await self._made(
                live, runtime, heritage.tools, (heritage.tenant, heritage.pauses)
            )

    async def take_over(self) -> Arrivals:
        """Go on with the sandboxes that an earlier process of this state directory has left.

        The caller takes on their commands that go on, and awaits `Arrivals.settle`.
        """
        from cellwall.engine.state.arriving import Arriving  # most engines keep nothing

        arriving = Arriving(self, self._runtimes, self._pool, self._tasks, self._held)
        return await arriving.take_over(lives=self._keeps_sandboxes, sleeps=self._keeps_hibernated)

    async def prepare_volumes(self) -> None:
        """Have the first volume sooner, on the runtime that is used by default."""
        from cellwall.runtimes.roots import PreparesVolumes  # most engines need no volumes

        runtime = await self.runtime()
        if isinstance(runtime, PreparesVolumes):
            await runtime.prepare_volumes()

    @cached_property
    def history_room(self) -> HistoryRoom:
        """Room for checkpoints of its sandboxes' work areas."""
        from cellwall.engine.history.room import HistoryRoom  # a single program has none

        return HistoryRoom(self.state_dir, self.settings.history_mb)

    @cached_property
    def volumes(self) -> VolumeStore:
        """The volumes of this engine's state directory."""
        from cellwall.engine.volumes.volume_store import VolumeStore  # most engines need none

        return VolumeStore(self.state_dir)

    @cached_property
    def images(self) -> ImageStore:
        """The images of this engine's state directory."""
        from cellwall.engine.images.making import store_of  # most engines never need it

        unpacker = partial(self.runtime, name="jail")
        return store_of(self.state_dir, self.settings, unpacker, self._pool.give_up)

    @cached_property
    def _installations(self) -> KeptInstallations:
        from cellwall.engine.packages.kept import KeptInstallations  # most install nothing

        return KeptInstallations(self.state_dir, self.outside, self._tasks)

    async def _opened(
        self,
        live: ClaimedSandbox,
        runtime: Runtime,
        egress: Egress,
        packages: tuple[str, ...],
        tenant: str,
    ) -> None:
        """Give a claimed sandbox its way out, and what comes by it, or destroy it."""
        try:
            await self.outside.open(live, egress.policy, tenant, egress.opened)
            if packages:
                await self._install(live, packages, tenant)
        except BaseException:
            live.kill("its network could not be opened, or its packages not installed")
            self._release(live, runtime)
            raise

    def _check_pausing(self, live: ClaimedSandbox, runtime: Runtime, *, hibernates: bool) -> None:
        """Destroy a claimed sandbox that its owner wants to pause, and that cannot be."""
        from cellwall.engine.state.hibernation import check_wishes  # most pause by themselves

        try:
            check_wishes(live, runtime, hibernates=hibernates)
        except (HostUnsupported, Conflict):
            live.kill("it cannot be paused or hibernated")
            self._release(live, runtime)
            raise

    async def _install(self, live: ClaimedSandbox, packages: tuple[str, ...], tenant: str) -> None:
        await self._installations.install(live, packages, tenant)

    def _released(self, runtime: Runtime, sandbox: AsyncSandbox) -> None:
        if self._sandboxes.pop(sandbox.id, None) is None:
            return
        if sandbox.live.asleep is None:
            self._release(sandbox.live, runtime)
        else:
            self.outside.close(sandbox.live)

    def _release(self, live: ClaimedSandbox, runtime: Runtime) -> None:
        self.outside.close(live)
        self._pool.release(live, runtime)
        on_released, live.on_released = live.on_released, None
        if on_released is not None:
            on_released()

    def sandbox(self, sandbox_id: str) -> AsyncSandbox | None:
        """Return the live sandbox of that id."""
        return self._sandboxes.get(sandbox_id)

    # -- care ------------------------------------------------------------------------------

    async def wait_settled(self) -> None:
        """Wait for the work behind answers: destructions, and fork-servers that get ready.

        Afterwards counts of processes and files are stable.
        """
        await self._pool.wait_buried()
        await self.outside.wait_closed()
        for runtime in self._runtimes.made.values():
            wait_settled = getattr(runtime, "wait_settled", None)
            if wait_settled is not None:
                await wait_settled()

    async def sweep(self) -> SweepReport:
        """Remove what dead owners left behind, for every runtime that may be used here."""
        removed: dict[str, int] = {}
        kept: tuple[str, ...] = ()
        reports = [await self._runtimes.get(name).sweep() for name in self._runtimes.allowed()]
        if os.access(self.state_dir / "images", os.W_OK):  # else there are none, or another user's
            reports.append(await self.images.sweep())
        for report in reports:
            for kind, count in report.removed.items():
                removed[kind] = removed.get(kind, 0) + count
            kept += report.kept
        if left := await asyncio.to_thread(self.volumes.sweep):
            removed["volumes"] = left
        return SweepReport(removed, kept)

    def statistics(self) -> EngineStatistics:
        """Return the engine's counts."""
        from cellwall.engine.state.copy_counts import CopyStatistics  # a single program asks none

        statuses = Counter(each.status for each in self._sandboxes.values())
        return EngineStatistics(
            runs=self._programs.runs,
            sandboxes=len(self._sandboxes),
            paused=statuses["paused"],
            hibernated=statuses["hibernated"],
            hibernated_bytes=sum(s.hibernation.image_bytes for s in self._sandboxes.values()),
            background_failures=self._tasks.failed,
            pool=self._pool.statistics(),
            copies=self.copies.statistics() if "copies" in vars(self) else CopyStatistics(),
            runtimes={name: r.statistics() for name, r in self._runtimes.made.items()},
        )

    async def aclose(self) -> None:
        """Destroy every sandbox and wait until nothing is left; idempotent."""
        self._is_open = False
        for live in list(self._programs.under_way):
            live.stop_all("the engine was closed")
        await self._no_caller.wait()
        await self._runtimes.wait_kept()
        for sandbox in list(self._sandboxes.values()):
            if sandbox.is_kept or sandbox.hibernation.is_stored:
                sandbox.leave()
            else:
                await sandbox.close()
        for part in ("copies", "_installations"):
            if part in vars(self):  # most engines never made it
                vars(self)[part].close()
        await self._tasks.cancel()
        await self.outside.aclose()
        await self._pool.aclose()
        await self._runtimes.aclose()
        if "images" in vars(self):
            self.images.close()

    def abandon(self) -> None:
        """Forget everything without touching it; for a forked child, which owns none of it."""
        self._is_open = False
        self.outside.abandon()
        self._runtimes.abandon()
