"""The embedded jail as a runtime: cgroups, fork-servers, posture, sandboxes.

The adapter between the contract of `engine` and the jail, in the engine process. The invariant:
`start` returns a sandbox only after the kernel's report of init and of every context equals the
plan's expectation, and it destroys anything half made before it raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.jail.fast import switch
from cellwall.jail.inspect import host_facts as facts
from cellwall.jail.inspect import posture, probe, shared_counts
from cellwall.jail.inspect.probe_counts import check_open_files
from cellwall.jail.plan import image_plan, plan
from cellwall.jail.processes import clone_request
from cellwall.linux import owner_label, uid_ranges
from cellwall.linux.cgroups import hierarchies, leftovers, sandbox_groups
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.model.template import BuiltTemplate
from cellwall.runtimes.base import (
    AheadOfEngine,
    Finding,
    RuntimeStatistics,
    SandboxSpec,
    SweepReport,
    refuse_hiding,
)
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.jail.child import Child
from cellwall.runtimes.jail.confinement import ClonedChild, Confinement
from cellwall.runtimes.jail.enforcement import hardness_of, shape_for
from cellwall.runtimes.jail.fork_server import Root
from cellwall.runtimes.jail.fork_servers import (
    Entry,
    ForkServers,
    volumes_need_root,
)
from cellwall.runtimes.jail.images.images import Images
from cellwall.runtimes.jail.memory_watchdog import Watchdog
from cellwall.runtimes.jail.sandbox import JailSandbox, SandboxResources
from cellwall.runtimes.jail.starting.bundle import bundle_in
from cellwall.runtimes.jail.starting.failures import explained
from cellwall.runtimes.jail.starting.head_start import HeadStart
from cellwall.runtimes.jail.starting.settings import Ground, ground_of, has_single_programs
from cellwall.runtimes.jail.worker import Worker
from cellwall.runtimes.lineages import STORED
from cellwall.runtimes.shared import freezing, network_listeners
from cellwall.runtimes.shared.cgroup_keeper import GroupKeeper
from cellwall.runtimes.shared.cpu_placement import Cpus
from cellwall.runtimes.shared.environment import OWN_PYTHON, image_environment, inside_environment
from cellwall.runtimes.shared.freezing import FreezerThreads, Freezing

if TYPE_CHECKING:
    from cellwall.images.image import Image
    from cellwall.runtimes.jail.copying import Copier
    from cellwall.runtimes.jail.kept_sandboxes import KeptSandboxes
    from cellwall.runtimes.keeping import NotTakenOver, TakenOver
    from cellwall.runtimes.roots import ImageBounds, UnpackedImage
    from cellwall.runtimes.volumes.holder import Holder, Ids, Lease

T = TypeVar("T")
_KEPT_S = 3.0
"""Most seconds for which an engine's end waits for what sandboxes that outlive it are to keep."""
_TRIES = 4
"""Number of attempts for one start. Each uses another fork-server if the one before was killed
meanwhile: on a host that is short of memory that happens more than once in the second that a new
fork-server takes."""


def _environment(spec: SandboxSpec) -> dict[str, str]:
    """Return the variables of a sandbox before its caller's."""
    if spec.image is None:
        return inside_environment(spec.template, spec.limits.cpus)
    return image_environment(spec.image, spec.limits.cpus)


def _is_of_the_fork_server(error: BaseException, entry: Entry | None) -> bool:
    """Whether a start failed because its fork-server ended, during its own start or later."""
    return isinstance(error, SandboxBroken) and (entry is None or not entry.server.is_usable)


def _ids_of(entry: Entry, index: int, spec: SandboxSpec) -> Ids:
    """Return which ids of a volume's files are which of a sandbox's, on the host.

    On disk a file has an id from `IMAGE_BASE` on, which no process has. A sandbox on a template has
    two ids, its user and root, and is shown the files of all others as files of `nobody`.
    """
    base, uids = uid_ranges.IMAGE_BASE, entry.uids
    if spec.image is not None:
        return ((base, uids.host_uid(index), image_plan.IDS),)
    return (
        (base, uids.host_uid(uids.root_index), 1),
        (base + plan.INSIDE_UID, uids.host_uid(index), 1),
    )


class JailRuntime:
    """The jail as a runtime; see the module."""

    name = "jail"
    level = IsolationLevel.NAMESPACE
    shows_changes = True
    """A sandbox on an image can show what it has changed of it."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._live: set[JailSandbox] = set()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._moving: set[asyncio.Task[None]] = set()
        self._started = self._failed = self._retried = 0
        self._is_swept = False
        self._watchdog = Watchdog(self._live)
        self.cpus = Cpus()
        self._freezer_threads = FreezerThreads()
        self.can_lower_rlimits = True
        self.answers_first = False
        """Whether the first programs of a template come from a quick fork-server; set before the
        first start."""
        self._head_start: HeadStart | None = None
        self._ground: Ground | None = None
        """What that knows of this host."""
        self.are_alike = False
        """Whether sessions of one template are laid out alike in every engine, so that they can
        outlive this one; set before the first start."""
        self.is_fast = switch.is_on()
        self.is_rehearsed = switch.is_rehearsed()
        self.kept: KeptSandboxes | None = None
        """What keeps sandboxes beyond this process, if anything does."""
        self._left: list[Entry] = []
        """Fork-servers that go on without this process."""

    # -- host, asked once ---------------------------------------------------------------------

    @cached_property
    def layout(self) -> hierarchies.Layout:
        """The cgroup hierarchies of this host that this process may use."""
        return hierarchies.discover()

    @cached_property
    def ids(self) -> uid_ranges.Ids:
        """The source of user and group ids for sandboxes."""
        return uid_ranges.find()

    def take_head_start(self, begun: AheadOfEngine) -> None:
        """Go on with what `starting.head_start` has begun, and with what it knows of this host."""
        if not isinstance(begun, HeadStart) or begun.state_dir != self._state_dir:
            return
        ground = begun.ground
        if ground is not None:
            self._head_start, self._ground = begun, ground
            vars(self).update(layout=ground.layout, ids=ground.ids, host_facts=ground.facts)

    @property
    def rootless(self) -> bool:
        """Whether every sandbox runs under this process's own id; see `linux.uid_ranges`."""
        return self.ids.are_shared

    def has_shared_id(self, spec: SandboxSpec) -> bool:
        """Whether other sandboxes run under the ids of a sandbox, and share the kernel's counts.

        Those on images do where an ordinary user maps their ids: the files have one owner on disk.
        """
        return self.rootless or (spec.image is not None and self.ids.rootless)

    @cached_property
    def host_facts(self) -> plan.HostFacts:
        """The facts of the host that every plan is made from."""
        return facts.for_jails(self._state_dir)

    @cached_property
    def _servers(self) -> ForkServers:
        made = ForkServers(
            self._state_dir,
            self._ground or ground_of(self.host_facts, self.ids, self.layout),
            self,
            answers_first=self.answers_first,
            head_start=self._head_start,
        )
        made.are_alike = self.are_alike
        return made

    @cached_property
    def _images(self) -> Images:
        return Images(self._state_dir, self.ids)

    @cached_property
    def _volumes(self) -> Holder:
        from cellwall.runtimes.volumes.holder import Holder  # most engines have no volume

        return Holder(self._state_dir)

    @cached_property
    def _groups(self) -> GroupKeeper:
        return GroupKeeper(self.layout, 0 if self.kept is None else self.kept.keeper.pid)

    @property
    def lifeline(self) -> int:
        """Pidfd of the keeper, with which fork-servers end; -1 if they end with this process."""
        return -1 if self.kept is None else self.kept.keeper.pidfd

    @cached_property
    def confinement(self) -> Confinement:
        """What compares the postures of sandboxes."""
        return Confinement(self.host_facts, self.ids.image_lines)

    def filter(self, shape: plan.Shape) -> bytes:
        """Return the seccomp filter of a sandbox."""
        return self._servers.whole_program(shape)

    def shape(self, spec: SandboxSpec) -> plan.Shape:
        """Return what is built in of a sandbox of `spec`."""
        return shape_for(spec, self.layout, rootless=self.rootless)

    @property
    def has_single_programs(self) -> bool:
        """Whether a sandbox of one program can do without an interpreter as its init."""
        return has_single_programs(self.layout, is_fast=self.is_fast)

    async def probe(self) -> list[Finding]:
        """Check each host feature in throw-away processes."""
        findings = await self._probed(for_faults=False)
        findings.append(await asyncio.to_thread(network_listeners.finding))
        findings.append(freezing.finding(self.layout))
        return findings

    async def probe_for_faults(self) -> list[Finding]:
        """Check only the features without which nothing starts: a first answer waits for it."""
        return await self._probed(for_faults=True)

    @staticmethod
    async def _probed(*, for_faults: bool) -> list[Finding]:
        found = await asyncio.to_thread(probe.run, for_faults=for_faults)
        return [Finding(f.feature, f.grade, f.detail, f.remedy) for f in found]

    async def warm(self, template: BuiltTemplate) -> None:
        """Start the template's fork-server if it does not run."""
        await self._servers.get(template)

    async def unpack_image(
        self, image: Image, target: Path, bounds: ImageBounds, below: Path | None = None
    ) -> UnpackedImage:
        """Unpack an image to `target`, in a jail."""
        return await self._images.unpacker.unpack(image, target, bounds, below)

    async def remove_image(self, tree: Path) -> None:
        """Remove an unpacked image, or what is left of one."""
        await self._images.unpacker.remove(tree)

    # -- sandboxes ----------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> JailSandbox:
        """Start one sandbox, or raise and leave nothing behind."""
        hardness = hardness_of(spec.limits, self.layout)
        weak = sorted(name for name, how in hardness.items() if how == "soft")
        if spec.demand_hard and weak:
            raise HostUnsupported(
                "hard limits",
                f"start a sandbox with hard limits: {', '.join(weak)} can only be held softly here",
                remedy="run `cellwall doctor`; it says how to get a delegated cgroup",
            )
        check_open_files(spec.limits.open_files)
        if self.kept is not None:
            self.kept.check_keeper()
        self._images.check(spec.image)
        if self.has_shared_id(spec):
            shared_counts.check(spec.limits)
        if not self.host_facts.core_limit:
            facts.core_limit()  # a handler may have been installed since the last check
        if not self._is_swept:
            self._is_swept = True
            await self.sweep()  # what a killed engine left: it cannot remove that itself
        lease = await self._held(spec)
        try:
            sandbox = await self._start_again(spec, hardness)
        except BaseException:
            await self._let_go(lease)
            raise
        sandbox.volumes = lease
        self._live.add(sandbox)
        if spec.has_network:
            try:
                await sandbox.way_out.prepare()
            except BaseException:
                self._failed += 1
                await sandbox.aclose()
                raise
        self._started += 1
        sandbox.pin()
        if hardness["memory_mb"] == "soft":
            self._watchdog.wake()
        return sandbox

    async def prepare_volumes(self) -> None:
        """Start the process that mounts volumes ahead of the first."""
        if not self.ids.rootless:
            await self._volumes.prepare()

    async def _held(self, spec: SandboxSpec) -> Lease | None:
        """Have the volumes of a sandbox mounted."""
        if not spec.volumes:
            return None
        if self.ids.rootless:
            raise volumes_need_root()
        refuse_hiding(spec)
        return await self._volumes.hold(spec.volumes)

    async def _let_go(self, lease: Lease | None) -> None:
        if lease is not None:
            await asyncio.shield(self._begin(self._volumes.release(lease)))

    async def _start_again(self, spec: SandboxSpec, hardness: dict[str, str]) -> JailSandbox:
        """Start a sandbox, from another fork-server if the first one ended meanwhile.

        The caller's code has not been handed over by then, so it cannot run twice.
        """
        for tries_left in reversed(range(_TRIES)):
            entry: Entry | None = None
            try:
                entry = await self._fork_server(spec)
                entry.live += 1
                return await self._build(entry, spec, hardness)
            except BaseException as caught:
                error: BaseException = caught
                if isinstance(caught, OSError):  # a process ended while it was read in /proc
                    error = explained(caught, f"start sandbox {spec.sandbox_id}")
                if entry is not None:
                    entry.live -= 1
                if not tries_left or not _is_of_the_fork_server(error, entry):
                    self._failed += 1
                    if error is caught:
                        raise
                    raise error from caught
                self._retried += 1
        raise AssertionError("the last try returns or raises")

    async def _fork_server(self, spec: SandboxSpec) -> Entry:
        if spec.image is not None:
            return await self._servers.for_images(spec.template)
        if spec.lineage and not spec.lineage.startswith(STORED):
            return self._servers.of_lineage(spec.lineage)
        if spec.purpose == "session":
            return await self._servers.get(spec.template)
        needs_init = spec.purpose != "single_program"
        return await self._servers.for_program(
            spec.template, needs_init=needs_init, is_awaited=spec.is_awaited
        )

    async def _build(
        self, entry: Entry, spec: SandboxSpec, hardness: dict[str, str]
    ) -> JailSandbox:
        is_usual = spec.purpose == "session" and spec.image is None
        workers = "session" if is_usual else "program"
        worker = await entry.server.take_worker(workers)
        # A worker that was asked will answer, and its child must be taken even if the caller has
        # left.
        forking = self._begin(self._fork(entry, worker, spec))
        try:
            cloned = await asyncio.shield(forking)
        except asyncio.CancelledError:
            self._begin(self._discard_unwanted(entry, forking))
            raise
        try:
            return await self._confine(entry, spec, hardness, cloned)
        except BaseException as error:
            if worker.is_gone:
                entry.server.lose("a worker has ended")
            await asyncio.shield(self._begin(self._discard(entry, cloned)))
            if isinstance(error, (posture.PostureMismatch, OSError, HostUnsupported, ChannelLost)):
                raise explained(error, f"sandbox {spec.sandbox_id}: confine it") from error
            raise

    async def _fork(self, entry: Entry, worker: Worker, spec: SandboxSpec) -> ClonedChild:
        """Have a worker clone the sandbox and then move on to the next sandbox's cgroups."""
        index = entry.uids.take()
        try:
            groups = worker.groups
            if groups is None:
                raise SandboxBroken("fork-server: a worker is in no cgroups")
            shape = self.shape(spec)
            child = await self._spawn(entry, worker, spec, shape, index)
            child.hangs_on = (*entry.server.holds_of(worker), *entry.uids.lock)
        except BaseException:
            entry.uids.give_back(index)
            entry.server.give_back(worker)  # it is still where it was
            raise
        if worker.groups is groups:
            worker.groups = None  # they belong to the sandbox now, whatever happens to the worker
        leaving = self._begin(self._leave(entry, worker))
        has_left = self._groups.workers_move_themselves
        return ClonedChild(child, groups, index, leaving, has_left, shape)

    async def _discard(self, entry: Entry, cloned: ClonedChild) -> None:
        cloned.child.discard()
        with contextlib.suppress(CellwallError):
            await asyncio.shield(cloned.leaving)
        await self._groups.remove(cloned.groups)
        entry.uids.give_back(cloned.uid_index)

    async def _discard_unwanted(self, entry: Entry, forking: asyncio.Task[ClonedChild]) -> None:
        with contextlib.suppress(CellwallError):  # the fork failed: there is nothing to discard
            await self._discard(entry, await forking)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` as a task that runs to its end; `aclose` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def place(self, entry: Entry, workers: Sequence[Worker]) -> None:
        """Put workers of a new fork-server into the cgroups of their first sandboxes."""
        for worker in workers:
            await self._move(entry, worker)
            if self._groups.workers_move_themselves:
                await entry.server.settle(worker)
                await self._move(entry, worker)

    async def clear(self, entry: Entry) -> None:
        """Remove the cgroups that an ended fork-server's workers were in or would go to."""
        await asyncio.gather(*self._moving, return_exceptions=True)
        for worker in entry.server.workers:
            for groups in worker.release():
                await self._groups.remove(groups)

    async def _leave(self, entry: Entry, worker: Worker) -> None:
        """Make the worker ready for the next sandbox.

        A worker that cannot move itself has to be moved out of the new sandbox's cgroups. On an
        idle host that takes milliseconds (the kernel waits for a grace period), so it continues
        while the child locks itself down.
        """
        try:
            await self._move(entry, worker)
        except CellwallError:
            if not self._groups.workers_move_themselves:
                raise  # otherwise no task awaits this one; `_move` has marked the fork-server lost
        finally:
            entry.server.give_back(worker)

    async def _move(self, entry: Entry, worker: Worker) -> None:
        try:
            if not self._groups.move_at_once(worker):
                moving = self._begin(self._groups.move_on(worker))
                self._moving.add(moving)
                moving.add_done_callback(self._moving.discard)
                await asyncio.shield(moving)  # the thread that moves it continues in any case
        except Exception as error:
            entry.server.lose(f"a worker could not be moved: {error}")
            raise

    async def _spawn(
        self, entry: Entry, worker: Worker, spec: SandboxSpec, shape: plan.Shape, index: int
    ) -> Child:
        environment = {**_environment(spec), **spec.env}
        guest = {
            "home": plan.HOME if spec.image is None else spec.image.working_dir,
            "is_image": spec.image is not None,
            "own_python": list(OWN_PYTHON) if shape.own_python else [],
            "changes": plan.CHANGES if shape.shows_changes else "",
            "contexts": list(spec.contexts),
            "language": spec.language,
            "purpose": spec.purpose,
            "has_standby": self.kept is not None and self.kept.keeps(spec),
            # Where only the end of a process shows how much memory it used, the engine has to wait
            # for it.
            "is_end_foreseen": spec.purpose != "session" and "memory" in self.layout.hard,
        }
        is_usual = environment == entry.server.settings.environment
        with contextlib.ExitStack() as held:
            root = Root(shape, program=self._servers.program(shape))
            if spec.image is not None:
                mount = await self._images.mount(spec.image, entry.uids.host_uid(index))
                held.callback(os.close, mount)
                root = root._replace(mounts=(mount,))
            for volume in spec.volumes:
                view = await self._volumes.view(volume, _ids_of(entry, index, spec))
                held.callback(os.close, view)
                root = root._replace(mounts=(*root.mounts, view))
            return await entry.server.spawn(
                worker,
                root=root,
                uid=index,
                guest=guest,
                start=clone_request.ALONE if spec.purpose == "single_program" else spec.start,
                own_environment=None if is_usual else environment,
            )

    async def _confine(
        self, entry: Entry, spec: SandboxSpec, hardness: dict[str, str], cloned: ClonedChild
    ) -> JailSandbox:
        found = await self.confinement.confine(entry, spec, cloned)
        ids = "shared" if self.has_shared_id(spec) else "own"
        isolation = Isolation(self.name, self.level, found.digest, hardness, ids, spec.profile)
        pids = (cloned.child.pid, *found.contexts)
        resources = SandboxResources(
            child=cloned.child,
            channel=found.channel,
            groups=cloned.groups,
            uid_index=cloned.uid_index,
            pids=pids,
            isolation=isolation,
            work_fd=found.work_fd,
            entry=entry,
        )
        return JailSandbox(self, spec, resources)

    def freezing(self, groups: sandbox_groups.Groups) -> Freezing:
        """Return what pauses the sandbox in `groups`."""
        return Freezing(self._groups.tree, self._freezer_threads, groups)

    async def remove(self, sandbox: JailSandbox, resources: SandboxResources) -> None:
        """Remove what a dead sandbox had on the host."""
        resources.close_descriptors()
        await self._groups.remove(resources.groups)
        await self._let_go(sandbox.volumes)
        self._live.discard(sandbox)
        if resources.entry is not None:
            resources.entry.live -= 1
            resources.entry.uids.give_back(resources.uid_index)
        await self._servers.close_unused()

    @cached_property
    def copier(self) -> Copier:
        """What copies live sessions."""
        from cellwall.runtimes.jail.copying import Copier  # most engines copy no session

        return Copier(self._servers, self._state_dir, self.start, self._begin)

    # -- beyond this process ------------------------------------------------------------------

    def keep_sandboxes(self) -> None:
        """Have sessions outlive this process, by a session keeper of this state directory."""
        from cellwall.runtimes.jail.keeping.client import KeeperClient  # most engines keep none
        from cellwall.runtimes.jail.kept_sandboxes import KeptSandboxes

        bundle = bundle_in(self._state_dir)
        self.kept = KeptSandboxes(KeeperClient.connect(self._state_dir, bundle), self)

    def want_base(self, sandbox: JailSandbox) -> None:
        """Have a sandbox that is to outlive this process keep what copies of it need then."""
        if self.are_alike:
            self.copier.want_base(sandbox)

    async def wait_kept(self) -> None:
        """Wait for the bases that sandboxes are to keep, before they are left."""
        if "copier" in vars(self):
            await self.copier.wait_kept(_KEPT_S)

    async def take_over(self) -> list[TakenOver | NotTakenOver]:
        """Take over what an earlier process of this state directory has left."""
        if self.kept is None:
            return []
        return await self.kept.take_over_all(self, self._live.add)

    def forget(self, sandbox: JailSandbox) -> None:
        """Forget a sandbox that goes on without this process, and so does its fork-server."""
        self._live.discard(sandbox)
        if sandbox.entry is not None and sandbox.entry not in self._left:
            self._left.append(sandbox.entry)

    async def wait_settled(self) -> None:
        """Wait until all fork-servers have all their workers, for a caller that counts processes.

        Before that, wait for every task under way, also if its result is no longer wanted.
        """
        while self._under_way:
            await asyncio.wait(self._under_way)
        if "_servers" in vars(self):
            await self._servers.wait_whole()

    def statistics(self) -> RuntimeStatistics:
        """Return the counters of this runtime."""
        entries = self._servers.entries if "_servers" in vars(self) else ()
        detail = {
            "fork_servers": len(entries),
            "forks": sum(entry.server.forks for entry in entries),
            "starts_retried": self._retried,
            "cgroups_not_removed": self._groups.quarantined if "_groups" in vars(self) else 0,
        }
        return RuntimeStatistics(len(self._live), self._started, self._failed, detail)

    async def sweep(self) -> SweepReport:
        """Remove the cgroups of engines that are gone, and kill what still runs in them."""
        judge = owner_label.is_dead_in_this_boot
        removed, kept = await asyncio.to_thread(leftovers.sweep, self.layout, judge)
        return SweepReport({"cgroups": removed}, tuple(kept))

    async def aclose(self) -> None:
        """Destroy every sandbox and fork-server."""
        for sandbox in [each for each in self._live if each.is_kept]:
            sandbox.leave()
        if self._left:
            self._servers.leave(self._left)
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._live)))
        if "_servers" in vars(self):  # otherwise never used, and perhaps impossible here
            await asyncio.gather(*self._under_way, return_exceptions=True)
            await self._servers.aclose()
        if "copier" in vars(self):
            self.copier.close()
        if "_images" in vars(self):
            await self._images.aclose()
        if "_volumes" in vars(self):
            await self._volumes.aclose()
        await self._watchdog.aclose()
        if "_groups" in vars(self):
            self._groups.close()
        await self._freezer_threads.aclose()
        if self.kept is not None:
            self.kept.close()

    def abandon(self) -> None:
        """Close the parent's descriptors in a forked child, and end nothing."""
        self._freezer_threads.guard.abandon()
        if "_servers" in vars(self):
            self._servers.abandon()
        if "_images" in vars(self):
            self._images.abandon()
        if "_volumes" in vars(self):
            self._volumes.abandon()
        if "copier" in vars(self):
            self.copier.abandon()
        for sandbox in self._live:
            sandbox.abandon()
        self._live.clear()
