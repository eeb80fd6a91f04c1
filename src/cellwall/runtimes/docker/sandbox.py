"""Docker sandbox: one live container as the engine sees it, with limits, counters and its end.

Made by `runtime` after its posture was verified. Counters come from the container's cgroup on this
host, which the sandboxed code cannot reach; a reading is never lower than the one before, because
the cgroup goes with the container. Killing needs no daemon where the kernel permits the signal: a
daemon that hangs or has gone keeps no sandbox alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.jail.plan.plan import INSIDE_UID
from cellwall.linux.cgroups.sandbox_groups import Groups
from cellwall.model.errors import CapacityError, CellwallError, SandboxBroken
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation
from cellwall.runtimes.base import KernelReadings, SandboxSpec, no_network
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.docker import posture
from cellwall.runtimes.docker.container import OWN_PROCESSES, PERIOD_US
from cellwall.runtimes.docker.daemon import Daemon, Refused
from cellwall.runtimes.shared import network_listeners, work_area
from cellwall.runtimes.shared.freezing import ThawGuard
from cellwall.runtimes.shared.shedding import MemoryWatch

if TYPE_CHECKING:
    from cellwall.runtimes.volumes.holder import Lease

_END_S = 10.0
_PATIENCE_S = 5.0
"""Seconds for every process to stop, as in the jail."""
_LOOK_S = 0.05
_AGAIN_S = 1.0
_LEARN_S = 2.0
_UNFROZEN = "freeze"
"""What runc's two errors have in common: *unable to freeze* (cgroup v1) and *timeout of … reached
waiting for the cgroup to freeze* (v2). It has thawed the group then."""


class Owner(Protocol):
    """What a sandbox needs of its runtime."""

    daemon: Daemon
    guard: ThawGuard

    async def remove(self, sandbox: DockerSandbox, container: str) -> None:
        """Remove the container of a dead sandbox."""

    def kill_by_daemon(self, container: str) -> None:
        """Have the daemon kill the container; returns at once."""


@dataclass(slots=True)
class SandboxResources:
    """Host resources of one sandbox."""

    container: str
    """Docker engine's id of the container."""
    pid: int
    pidfd: int
    """Pidfd of the first process; -1 once closed."""
    work_fds: tuple[int, ...]
    """File descriptors of the work area's file systems, opened before caller code existed; empty if
    they cannot be opened, and once closed."""
    channel: GuestChannel
    groups: Groups
    isolation: Isolation
    own_kernel_bytes: int = 0
    """Bytes that a kernel of the container's own may use besides the program; 0 without one."""
    uid: int = INSIDE_UID
    """User id of the container."""

    def close_descriptors(self) -> None:
        """Close the descriptors.

        SECURITY: the kernel reuses the numbers, so no code may use these once they are closed.
        """
        for fd in (*self.work_fds, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self.work_fds, self.pidfd = (), -1


class DockerSandbox:
    """One live container."""

    def __init__(self, runtime: Owner, spec: SandboxSpec, resources: SandboxResources) -> None:
        """Take over what the runtime made and checked."""
        self._runtime = runtime
        self._spec = spec
        self._resources = resources
        self._limits = spec.limits
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(resources.pidfd, self._on_ended)
        self._closing: asyncio.Task[None] | None = None
        self._highest = KernelReadings()
        self._ended_whole = 0
        self._watch: MemoryWatch | None = None
        self.volumes: Lease | None = None
        """The volumes that are mounted for it."""
        self.way_out = network_listeners.WayOut(self._opened)
        self._asked: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None
        if resources.own_kernel_bytes and spec.purpose == "session":
            self._watch = MemoryWatch(
                resources.channel,
                resources.groups,
                resources.own_kernel_bytes,
                spec.limits.memory_bytes,
                self._end_whole,
            )

    @property
    def isolation(self) -> Isolation:
        """Isolation that is in force."""
        return self._resources.isolation

    @property
    def posture(self) -> Mapping[str, Any]:
        """Facts of the container's first process, as the kernel reports them now."""
        return posture.read(self._resources.pid)

    @property
    def channel(self) -> GuestChannel:
        """Connection to init."""
        return self._resources.channel

    @property
    def uid(self) -> int:
        """User id inside."""
        return self._resources.uid

    @property
    def container(self) -> str:
        """Docker engine's id of the container."""
        return self._resources.container

    @property
    def pid(self) -> int:
        """Host's process id of the container's first process."""
        return self._resources.pid

    def fits(self, spec: SandboxSpec) -> bool:
        """Report whether all but the changeable limits, processes and CPU share, are equal."""
        ours, theirs = self._spec.limits, spec.limits
        built_in = ["memory_mb", "disk_mb", "inodes", "file_mb", "open_files"]
        if self._resources.own_kernel_bytes:
            built_in.append("processes")
        return (
            spec.template.digest == self._spec.template.digest
            and spec.volumes == self._spec.volumes
            and spec.contexts == self._spec.contexts
            and spec.language == self._spec.language
            and spec.start == self._spec.start
            and spec.has_network == self._spec.has_network
            and dict(spec.env) == dict(self._spec.env)
            and math.ceil(ours.cpus) == math.ceil(theirs.cpus)
            and all(getattr(ours, name) == getattr(theirs, name) for name in built_in)
            and (not self._resources.own_kernel_bytes or spec.purpose == self._spec.purpose)
            and not (spec.demand_hard and "soft" in self.isolation.hardness.values())
        )

    async def apply_limits(self, limits: Limits) -> None:
        """Have the daemon change the limits that differ; SandboxBroken if that fails."""
        wanted: dict[str, int] = {}
        if limits.cpus != self._limits.cpus:
            wanted["CpuQuota"] = max(1000, int(limits.cpus * PERIOD_US))
        if limits.processes != self._limits.processes:
            wanted["PidsLimit"] = limits.processes + OWN_PROCESSES
        if wanted:
            try:
                await self._runtime.daemon.update(self.container, wanted)
            except CellwallError as error:
                raise SandboxBroken(f"apply limits: {error.message}") from error
        self._limits = limits
        if not self._resources.own_kernel_bytes:
            note_limits(self._resources.groups, limits)

    async def open_listeners(self) -> list[socket.socket]:
        """Return the listeners of a way out, opened at the start or now."""
        return await self.way_out.take()

    async def _opened(self) -> list[socket.socket]:
        if self._resources.own_kernel_bytes:
            raise no_network(self.isolation.runtime)
        return await network_listeners.opened(self.pid, self._resources.pidfd)

    @property
    def fresh(self) -> KernelReadings:
        """Counters after the start of the interpreter."""
        return self.readings()

    def readings(self) -> KernelReadings:
        """Return the cgroup's counters; never lower than before, even after its removal."""
        groups, before = self._resources.groups, self._highest
        areas = [work_area.used(fd) for fd in self._resources.work_fds]
        now, peak, kills = groups.memory()
        own = self._resources.own_kernel_bytes
        processes = groups.processes_peak()
        self._highest = replace(
            before,
            cpu_s=max(before.cpu_s, groups.cpu_s()),
            memory_bytes=max(0, now - own),
            memory_peak_bytes=max(before.memory_peak_bytes, self._programs_part(peak)),
            oom_kills=max(before.oom_kills, kills + self._shed),
            processes_refused=max(before.processes_refused, groups.processes_refused(processes)),
            processes_peak=None if own else processes or before.processes_peak,
            disk_full=any(is_full for is_full, _ in areas),
            work_bytes=sum(used for _, used in areas),
        )
        return self._highest

    @property
    def _shed(self) -> int:
        return self._ended_whole + (0 if self._watch is None else self._watch.kills)

    def _end_whole(self) -> None:
        self._ended_whole = 1
        self.kill()

    def _programs_part(self, peak: int) -> int:
        """Return the program's part of a peak: above the limit, gVisor used its own allowance."""
        own = self._resources.own_kernel_bytes
        return min(peak - own, self._limits.memory_bytes) if own else peak

    def check_pausing(self) -> None:
        """Do nothing: every daemon can pause a container."""

    async def pause(self) -> None:
        """Have the daemon stop the container's processes."""
        if self._watch is not None:
            self._watch.stop()
        if self._resources.groups.freezer is not None:
            await asyncio.to_thread(self._runtime.guard.add, self._resources.groups.freezer)
        try:
            await self._by_daemon(self._stand_still)
        except BaseException:
            self._watch_on()
            raise

    async def _stand_still(self, container: str) -> None:
        """Ask until its processes stand still: an engine gives up within a tenth of a second."""
        until = self._loop.time() + _PATIENCE_S
        while True:
            try:
                await self._runtime.daemon.pause(container)
                return
            except Refused as error:
                if _UNFROZEN not in error.message or self._closing is not None:
                    raise
                if self._loop.time() > until:
                    raise CapacityError(
                        f"pause: its processes did not stop within {_PATIENCE_S:g} s",
                        retry_after_s=_AGAIN_S,
                        remedy="try again when the machine has less to do, or close it",
                    ) from error
            await asyncio.sleep(_LOOK_S)

    async def resume(self) -> None:
        """Have the daemon let the processes go on."""
        await self._by_daemon(self._runtime.daemon.unpause)
        self._watch_on()

    async def _by_daemon(self, step: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        if self._closing is not None:
            raise SandboxBroken("pause: the sandbox has ended")
        asked = self._loop.create_task(step(self.container))
        self._asked = asked
        try:
            await asyncio.shield(asked)
        except Refused as error:
            raise SandboxBroken(f"pause: {error.message}") from error

    def _watch_on(self) -> None:
        if self._watch is not None and not self._ended.done():
            self._watch.go_on()

    def kill(self) -> None:
        """Kill the first process: by its pidfd, else through the daemon; idempotent."""
        if self.volumes is not None:
            self.volumes.is_ending = True
        if self._resources.pidfd < 0 or self._ended.done():
            return
        try:
            signal.pidfd_send_signal(self._resources.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            self._runtime.kill_by_daemon(self.container)
        if self._resources.groups.freezer is not None:
            self._resources.groups.freezer.let_die()

    def _on_ended(self) -> None:
        self._loop.remove_reader(self._resources.pidfd)
        if self._watch is not None:
            self._watch.stop()
        if self._ended.done():
            return
        kills = self.readings().oom_kills
        if kills or not self._resources.groups.are_gone:
            self._ended.set_result(None)
        else:  # the container engine was sooner than this process
            self._learning = self._loop.create_task(self._learn_its_end())

    async def _learn_its_end(self) -> None:
        """Ask the container engine, which watched the cgroup, whether memory was the reason."""
        with contextlib.suppress(CellwallError, TimeoutError):
            async with asyncio.timeout(_LEARN_S):
                was_killed = await self._runtime.daemon.met_its_memory_limit(self.container)
            self._highest = replace(self._highest, oom_kills=int(was_killed))
        self._ended.set_result(None)

    async def wait_ended(self) -> None:
        """Return when the first process is gone, which the kernel delays until all others are."""
        await asyncio.shield(self._ended)

    def abandon(self) -> None:
        """Release the parent's descriptors without killing anything; for a forked child."""
        self.way_out.close()
        self._resources.close_descriptors()

    async def aclose(self) -> None:
        """Kill, wait and remove; a second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.kill()
        self.way_out.close()
        if self._asked is not None:
            with contextlib.suppress(CellwallError):
                await self._asked
            self.kill()  # a pause that was under way came after the first one
            if self._resources.groups.freezer is not None:
                self._runtime.guard.drop(self._resources.groups.freezer)
        with contextlib.suppress(TimeoutError):  # the daemon is asked next
            async with asyncio.timeout(_END_S):
                await self.wait_ended()
        if self._watch is not None:
            self._watch.stop()
        self._resources.channel.poll()
        self._resources.channel.close()
        if not self._ended.done():
            self._loop.remove_reader(self._resources.pidfd)
        self._resources.close_descriptors()
        await self._runtime.remove(self, self.container)


def note_limits(groups: Groups, limits: Limits) -> None:
    """Record the limit that the daemon gave the kernel, for the reader of the counters."""
    for hierarchy, path in groups.paths:
        if "pids" in hierarchy.controllers:
            groups.applied[path + "/pids.max"] = str(limits.processes + OWN_PROCESSES)
