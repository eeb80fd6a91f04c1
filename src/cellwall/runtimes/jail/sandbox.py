"""One live jail as the engine sees it: limits set from outside, counters, the end.

Only `runtime.JailRuntime` makes it, after it has verified the posture. Nothing here opens a path
that caller code can change; what is needed from inside was opened before caller code existed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.jail.inspect import posture, usage_sums
from cellwall.jail.plan import plan
from cellwall.linux.cgroups import sandbox_groups
from cellwall.model.errors import SandboxBroken
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation
from cellwall.runtimes.base import KernelReadings, SandboxSpec
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.jail.child import Child
from cellwall.runtimes.jail.fork_servers import Entry
from cellwall.runtimes.jail.stored.kept_base import KeptBase
from cellwall.runtimes.lineages import STORED
from cellwall.runtimes.shared import network_listeners, work_area
from cellwall.runtimes.shared.cpu_placement import Cpus
from cellwall.runtimes.shared.freezing import Freezing

if TYPE_CHECKING:
    from cellwall.runtimes.jail.keeping.record import KeptSandbox
    from cellwall.runtimes.jail.kept_sandboxes import KeptSandboxes
    from cellwall.runtimes.volumes.holder import Lease


class Owner(Protocol):
    """The part of a runtime that a sandbox uses."""

    cpus: Cpus
    kept: KeptSandboxes | None
    """What keeps its sandboxes beyond this process, if anything does."""
    can_lower_rlimits: bool
    """False once the kernel has refused: prlimit(2) needs CAP_SYS_RESOURCE, which even root may
    lack."""

    def freezing(self, groups: sandbox_groups.Groups) -> Freezing:
        """Return what pauses a sandbox."""

    async def remove(self, sandbox: JailSandbox, resources: SandboxResources) -> None:
        """Remove what a dead sandbox had on the host."""

    def forget(self, sandbox: JailSandbox) -> None:
        """Forget a sandbox that goes on without this process."""

    def want_base(self, sandbox: JailSandbox) -> None:
        """Have a sandbox that is to outlive this process `keep_base`, now or in the background."""


@dataclass(slots=True)
class SandboxResources:
    """The host's resources of one sandbox."""

    child: Child
    channel: GuestChannel
    groups: sandbox_groups.Groups
    uid_index: int
    pids: tuple[int, ...]
    isolation: Isolation
    work_fd: int
    """File descriptor of the work area, opened before caller code existed; -1 once closed."""
    entry: Entry | None
    """The fork-server that made it; None if an earlier engine had it, whose sockets are its own
    then."""

    held: list[int] = field(default_factory=list)
    """File descriptors of locked files that the sandbox was given, if it outlives this process."""
    base: KeptBase | None = None
    """What the next server needs to copy it, if it outlives this process."""
    no_base: str = ""
    """Why there is none, if there was to be one."""

    def close_descriptors(self) -> None:
        """Close the descriptors and forget their numbers.

        SECURITY: the kernel gives closed numbers out again, so these must not be used any more.
        """
        numbers = (self.work_fd, self.child.pidfd)
        self.work_fd = self.child.pidfd = -1  # first: a child forked meanwhile closes none twice
        for fd in numbers:
            if fd >= 0:
                os.close(fd)
        if self.child.standby is not None:
            self.child.standby.close()
        for fd in (*self.held, *(self.child.hangs_on if self.entry is None else ())):
            os.close(fd)
        self.held, self.child.hangs_on = [], ()
        if self.base is not None:
            self.base.close()
            self.base = None


class JailSandbox:
    """One live jail."""

    def __init__(
        self,
        runtime: Owner,
        spec: SandboxSpec,
        resources: SandboxResources,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._resources = resources
        self._limits = spec.limits
        self._cpus: frozenset[int] = frozenset()
        self._watch = resources.child.watch()
        self._closing: asyncio.Task[None] | None = None
        self._record: KeptSandbox | None = None
        """What is kept of it beyond this process, if it is kept."""
        self._has_left = False
        self.volumes: Lease | None = None
        """The volumes that are mounted for it."""
        self.way_out = network_listeners.WayOut(self._opened)
        self._pauses: Freezing | None = None
        self.soft_kills = 0
        self._meter = usage_sums.Meter(resources.child.pid)
        self._peak_bytes = 0
        self._full_looks = 0
        """Number of reads of `sums` that found as many processes as the limit allows."""
        self._peak_processes = 0
        """Largest number of processes that a read of `sums` found, without init."""

    @property
    def isolation(self) -> Isolation:
        """The isolation that is really in force."""
        return self._resources.isolation

    @property
    def posture(self) -> Mapping[str, Any]:
        """The facts of init as the kernel reports them now; see `jail.inspect.posture`."""
        return posture.read(self._resources.child.pid)

    @property
    def channel(self) -> GuestChannel:
        """The connection to init."""
        return self._resources.channel

    @property
    def spec(self) -> SandboxSpec:
        """The properties that it was started with."""
        return self._spec

    @property
    def is_closing(self) -> bool:
        """Whether the sandbox is being closed; its pid may soon belong to another process."""
        return self._closing is not None

    @property
    def pid(self) -> int:
        """The pid of init on the host."""
        return self._resources.child.pid

    def fits(self, spec: SandboxSpec) -> bool:
        """Whether this sandbox can serve `spec`.

        Limits that are built in must be equal; those that can be lowered must not be below the
        wanted ones.
        """
        ours, theirs = self._spec.limits, spec.limits
        built_in = ("memory_mb", "disk_mb", "inodes")
        lowerable = ("processes", "file_mb", "open_files")
        return (
            spec.template.digest == self._spec.template.digest
            and spec.contexts == self._spec.contexts
            and spec.language == self._spec.language
            and spec.purpose == self._spec.purpose
            and spec.has_network == self._spec.has_network
            and spec.image == self._spec.image
            and spec.volumes == self._spec.volumes
            and spec.lineage in {"", self.lineage}
            and spec.start == self._spec.start == "fork"
            and dict(spec.env) == dict(self._spec.env)
            and math.ceil(ours.cpus) == math.ceil(theirs.cpus)
            and all(getattr(ours, name) == getattr(theirs, name) for name in built_in)
            and all(self._can_be(getattr(ours, n), getattr(theirs, n)) for n in lowerable)
            and not (spec.demand_hard and "soft" in self.isolation.hardness.values())
        )

    def _can_be(self, ours: int, theirs: int) -> bool:
        return ours == theirs or (ours > theirs and self._runtime.can_lower_rlimits)

    async def apply_limits(self, limits: Limits) -> None:
        """Lower what the kernel enforces, from outside, before caller code runs.

        Raises SandboxBroken if the sandbox has ended by itself, while parked or on its way to its
        owner.
        """
        try:
            self._apply_limits(limits)
        except ProcessLookupError as error:
            raise SandboxBroken("apply limits: the sandbox has ended") from error
        except PermissionError as error:
            self._runtime.can_lower_rlimits = False
            raise SandboxBroken("apply limits: they cannot be lowered from outside") from error
        self._limits = limits
        self.pin()

    def _apply_limits(self, limits: Limits) -> None:
        self._resources.groups.apply(limits)
        is_counted = self._resources.groups.holds("pids")
        most = plan.process_rlimit(limits.processes, is_counted=is_counted)
        for name, number, size in (
            ("processes", resource.RLIMIT_NPROC, most),
            ("file_mb", resource.RLIMIT_FSIZE, limits.file_mb * 1024 * 1024),
            ("open_files", resource.RLIMIT_NOFILE, limits.open_files),
        ):
            if getattr(limits, name) != getattr(self._limits, name):
                for pid in self._resources.pids:
                    resource.prlimit(pid, number, (size, size))

    def pin(self) -> None:
        """Give and show the sandbox as many CPUs as its quota has, the least used ones."""
        count = max(1, math.ceil(self._limits.cpus))
        if count == len(self._cpus):
            return
        self._runtime.cpus.give_back(self._cpus)
        pids = self._resources.pids
        if self._spec.purpose == "single_program":
            pids = pids[-1:]  # init only waits
        self._cpus = self._runtime.cpus.take(count, posture.last_cpu(pids[-1]))
        if not self._cpus:
            return
        is_forked = self._spec.language == "python" and self._spec.start == "fork"
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # A fork has one thread; an interpreter of another language has several before it
                # runs.
                for thread in (pid,) if is_forked else posture.threads(pid):
                    os.sched_setaffinity(thread, self._cpus)

    async def open_listeners(self) -> list[socket.socket]:
        """Return the listeners of a way out, opened at the start or now."""
        return await self.way_out.take()

    async def _opened(self) -> list[socket.socket]:
        if self.is_closing:  # its pidfd may be closed
            raise SandboxBroken("open the network: the sandbox has ended")
        return await network_listeners.opened(self.pid, self._resources.child.pidfd)

    @property
    def fresh(self) -> KernelReadings:
        """The readings of a sandbox that has run nothing.

        They are zero with cgroups: `Groups.begin` has reset the counters, or their base values.
        """
        return KernelReadings() if self._resources.groups.holds("memory") else self.readings()

    def readings(self) -> KernelReadings:
        """Read the counters of the cgroups, or sums over the process tree where there are none."""
        disk_full, work_bytes = work_area.used(self._resources.work_fd)
        if not self._resources.groups.holds("memory"):
            sums = self.sums()
            self._meter.idle_looks = 0  # something runs: the watchdog is to look soon
            return KernelReadings(
                cpu_s=max(sums.cpu_s, self._resources.groups.cpu_s()),
                memory_bytes=sums.memory_bytes,
                memory_peak_bytes=self._peak_bytes,
                oom_kills=self.soft_kills,
                processes_refused=self._full_looks,
                processes_peak=self._peak_processes,
                disk_full=disk_full,
                work_bytes=work_bytes,
            )
        groups = self._resources.groups
        now, peak, kills = groups.memory()
        processes = groups.processes_peak()
        return KernelReadings(
            cpu_s=groups.cpu_s(),
            memory_bytes=now,
            memory_peak_bytes=peak,
            oom_kills=kills,
            processes_refused=groups.processes_refused(processes),
            processes_peak=processes,
            disk_full=disk_full,
            work_bytes=work_bytes,
        )

    def sums(self) -> usage_sums.Sums:
        """Sum up from outside what no cgroup counts."""
        sums = self._meter.read(work_area.used(self._resources.work_fd)[1])
        self._peak_bytes = max(self._peak_bytes, sums.memory_bytes)
        self._peak_processes = max(self._peak_processes, sums.processes - 1)
        self._full_looks += sums.processes - 1 >= self._limits.processes
        return sums

    @property
    def idle_looks(self) -> int:
        """Number of consecutive calls of `sums` that found no use of memory inside."""
        return self._meter.idle_looks

    def kill_above_limit(self) -> None:
        """Kill the process with the most memory if the sandbox is above its limit.

        For the soft watchdog. The whole sandbox is killed if it is one program's own, or if killing
        that process would not help or is not possible.
        """
        excess_bytes = self.sums().memory_bytes - self._limits.memory_bytes
        if excess_bytes <= 0:
            return
        before = self._meter.kills
        if self._spec.purpose != "session" or not self._meter.kill_heaviest(excess_bytes):
            self.soft_kills += 1
            self.kill()
        self.soft_kills += self._meter.kills - before

    @property
    def _freezing(self) -> Freezing:
        if self._pauses is None:
            self._pauses = self._runtime.freezing(self._resources.groups)
        return self._pauses

    def check_pausing(self) -> None:
        """Raise HostUnsupported if this host cannot pause it."""
        self._freezing.check()

    async def pause(self) -> None:
        """Freeze its processes; return when they stand still."""
        await self._freezing.pause()

    async def resume(self) -> None:
        """Let its processes go on."""
        await self._freezing.resume()

    async def page_out(self) -> None:
        """Write its memory to swap, where this machine has some."""
        await self._freezing.page_out()

    def kill(self) -> None:
        """Kill init by its pidfd; the kernel kills the pid namespace."""
        if self.volumes is not None:
            self.volumes.is_ending = True
        self._resources.child.kill()
        self._resources.groups.kill()

    async def wait_ended(self) -> None:
        """Return when init is gone. The kernel delays that until all other processes are gone."""
        await asyncio.shield(self._watch)

    # -- beyond this process -------------------------------------------------------------------

    @property
    def entry(self) -> Entry | None:
        """The fork-server that made it, if this process has it."""
        return self._resources.entry

    @property
    def lineage(self) -> str:
        """Name of the fork-server that made it, or of the stored lineage that it is one of.

        Of neither if it was taken over without a base.
        """
        if self.entry is None:
            return "" if self.base is None else self.base.lineage
        return self._spec.lineage if self._spec.lineage.startswith(STORED) else self.entry.lineage

    @property
    def base(self) -> KeptBase | None:
        """What the next server needs to copy it, and this one if it was taken over."""
        return self._resources.base

    @property
    def no_base(self) -> str:
        """Why there is none, if there was to be one."""
        return self._resources.no_base

    @property
    def is_kept(self) -> bool:
        """Whether it outlives this process."""
        return self._record is not None and not self.is_closing

    def keep(self, owner: Mapping[str, Any]) -> bool:
        """Have it outlive this process; see `keeping.Keepable`."""
        kept = self._runtime.kept
        if kept is None or not kept.keeps(self._spec) or self.is_closing:
            return False
        known = self._record
        if known is None:
            self._runtime.want_base(self)
        self._record = kept.put(self._spec, self._limits, self._resources, owner, known)
        return True

    def keep_base(self, base: KeptBase | None, why_not: str = "") -> None:
        """Have what copies need outlive this process with it; once."""
        resources = self._resources
        if self._has_left or self.is_closing or resources.base is not None:
            return
        resources.no_base = why_not
        own = resources.base = None if base is None else base.again()
        try:
            self._put_anew()
        except BaseException:
            resources.base = None
            if own is not None:
                own.close()
            raise

    def _put_anew(self) -> None:
        """Keep its descriptors as they are now, if it is kept."""
        kept, record = self._runtime.kept, self._record
        if kept is not None and record is not None:
            self._record = kept.put_anew(self._spec.sandbox_id, record, self._resources)

    def hold(self, *files: int) -> None:
        """Have locked files stay open as long as it lives, before it is given them.

        SECURITY: a lock ends with the last descriptor of its file, and this process may end before
        a sandbox that still has the file: what that locked would be a message to all that have it.
        """
        kept, held = self._runtime.kept, self._resources.held
        if kept is None:
            return
        base = () if self.base is None else (self.base.base,)
        known = {os.fstat(fd).st_ino for fd in (*held, *base)}
        new = [os.dup(fd) for fd in files if os.fstat(fd).st_ino not in known]
        held += new
        if new:
            self._put_anew()

    def go_on(self, record: KeptSandbox, limits: Limits) -> None:
        """Go on with what an earlier process kept of it."""
        self._record, self._limits = record, limits

    def leave(self) -> None:
        """Close this process's descriptors, and end nothing."""
        self._has_left = True
        self.way_out.close()
        self._resources.child.leave()
        self._resources.channel.close("the server ends, and the sandbox goes on")
        self._resources.close_descriptors()
        self._runtime.forget(self)

    def abandon(self) -> None:
        """Close the parent's descriptors in a forked child, and kill nothing."""
        self.way_out.close()
        self._resources.close_descriptors()

    async def aclose(self) -> None:
        """Kill the sandbox, wait for its end and remove it; a second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.kill()
        self.way_out.close()
        if self._pauses is not None:
            await self._pauses.end()
        await self.wait_ended()
        self._resources.channel.close()
        if self._record is not None and self._runtime.kept is not None:
            self._runtime.kept.drop(self._spec.sandbox_id)
        self._runtime.cpus.give_back(self._cpus)
        await self._runtime.remove(self, self._resources)
