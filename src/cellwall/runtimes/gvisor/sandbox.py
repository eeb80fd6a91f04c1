"""gVisor sandbox: one live sandbox as the engine sees it, with limits, counters and its end.

Made only by `runtime`, after its posture was verified. The invariant: its host resources are a
process tree and cgroup directories; both are gone when `aclose` returns, or appear in the count of
what could not be removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cellwall.linux.cgroups import sandbox_groups
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.runtimes.base import KernelReadings, Purpose, SandboxSpec
from cellwall.runtimes.gvisor.keeper import Keeper
from cellwall.runtimes.gvisor.trace_listener import Witness
from cellwall.runtimes.shared import work_area
from cellwall.runtimes.shared.freezing import Freezing
from cellwall.runtimes.shared.shedding import ROOM_MB, MemoryWatch

if TYPE_CHECKING:
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation
    from cellwall.runtimes.channel.channel import GuestChannel
    from cellwall.runtimes.gvisor.network import Outer
    from cellwall.runtimes.volumes.holder import Lease

OWN_MEMORY_MB = 48
"""MiB for gVisor itself: its kernel, its file server and `runsc`, before a program has run."""
_END_S = 3.0
_FIXED = ("cpus", "memory_mb", "disk_mb", "inodes", "processes", "file_mb", "open_files")


def held(limits: Limits, purpose: Purpose = "program") -> Limits:
    """Return the limits of the host's cgroups under which a program may use all of `limits`.

    gVisor needs threads of its own for each thread inside: on ptrace one for each pair of an inner
    process and a kernel thread that ever ran it. The sandbox's kernel refuses at the limit itself;
    the host's limit is the second bound, and gVisor ends when it is reached.
    """
    room_mb = ROOM_MB if purpose == "session" else 0
    return replace(
        limits,
        memory_mb=limits.memory_mb + OWN_MEMORY_MB + room_mb,
        processes=min(100_000, 512 + 32 * limits.processes),
    )


@dataclass(slots=True)
class SandboxResources:
    """Host resources of one sandbox."""

    keeper: Keeper
    witness: Witness | None
    channel: GuestChannel
    groups: sandbox_groups.Groups
    isolation: Isolation
    posture: Mapping[str, Any]
    work_fd: int = -1
    """File descriptor of its work area, opened before caller code existed; -1 once closed."""
    outer: Outer | None = None
    """Outer end of its way out, if it was started with one."""
    order: dict[str, Any] = field(default_factory=dict)
    """What its keeper was told."""
    lineage: str = ""
    """What its copies have in common with it."""

    def close_work(self) -> None:
        """Close the work area's descriptor.

        SECURITY: the kernel reuses the number, so no code may use it once it is closed.
        """
        if self.work_fd >= 0:
            os.close(self.work_fd)
        self.work_fd = -1


class GvisorSandbox:
    """One live sandbox."""

    def __init__(
        self,
        spec: SandboxSpec,
        resources: SandboxResources,
        remove: Callable[[GvisorSandbox], Awaitable[None]],
        freezing: Freezing,
    ) -> None:
        """Take over what the runtime made and checked; `remove` removes its cgroups."""
        self._freezing = freezing
        self._spec = spec
        self.volumes: Lease | None = None
        """The volumes that are mounted for it."""
        self._resources = resources
        self._remove = remove
        self._closing: asyncio.Task[None] | None = None
        self._hopeless = 0
        self._is_left = False
        self._watch: MemoryWatch | None = None
        if spec.purpose == "session":
            self._watch = MemoryWatch(
                resources.channel,
                resources.groups,
                OWN_MEMORY_MB << 20,
                spec.limits.memory_bytes,
                self._give_up,
            )
        self._fresh = self.readings()
        resources.keeper.on_end(self._on_ended)

    @property
    def isolation(self) -> Isolation:
        """Isolation that is in force."""
        return self._resources.isolation

    @property
    def posture(self) -> Mapping[str, Any]:
        """Facts read back from the host's kernel at the start."""
        return self._resources.posture

    async def open_listeners(self) -> list[socket.socket]:
        """Return the listeners of its way out, which it must have been started with."""
        if self._resources.outer is None:
            raise HostUnsupported(
                "network",
                "network: gVisor takes its devices at the start, and this sandbox has none",
                remedy="create it with a network policy; an empty list allows nothing yet",
            )
        return await self._resources.outer.way_out.take()

    @property
    def channel(self) -> GuestChannel:
        """Connection to init."""
        return self._resources.channel

    # -- copies ----------------------------------------------------------------------------

    @property
    def lineage(self) -> str:
        """What its copies have in common with it."""
        return self._resources.lineage

    @property
    def order(self) -> Mapping[str, Any]:
        """What its keeper was told."""
        return self._resources.order

    @property
    def has_way_out(self) -> bool:
        """Whether it was started with a network."""
        return self._resources.outer is not None

    def another_area(self) -> int:
        """Return another descriptor of its work area; the caller's."""
        return os.dup(self._resources.work_fd)

    def leave(self) -> None:
        """Have its processes end without being its end: `come_back` follows, or `kill`."""
        self._is_left = True
        if self._watch is not None:
            self._watch.stop()
        self._resources.keeper.forget_end()
        self._resources.channel.leave_socket()

    @property
    def is_left(self) -> bool:
        """Whether `leave` was called, and its processes run on all the same."""
        return self._is_left and not self._resources.keeper.has_ended

    def stay(self) -> None:
        """Undo `leave`: its processes have not ended."""
        if self._is_left:
            self._is_left = False
            self._resources.channel.resume()
            self._on_end_of(self._resources.keeper)
            self._watch_on()

    def _on_end_of(self, keeper: Keeper) -> None:
        keeper.on_end(lambda: self._resources.channel.close("runsc has ended"))
        keeper.on_end(self._on_ended)

    async def come_back(self, keeper: Keeper, line: socket.socket, witness: Witness | None) -> None:
        """Go on with another keeper, in the same cgroups, once the one before has ended."""
        if self._closing is not None:
            await end(keeper, self._resources.groups)
            line.close()
            raise SandboxBroken("gVisor: copy the sandbox: it was closed meanwhile", remedy="")
        before, old = self._resources.keeper, self._resources.witness
        self._resources.keeper = keeper
        before.close()
        if witness is not None and old is not None:
            old.hear()
            witness.refused += old.refused
            old.close()
        self._resources.witness = witness
        self._resources.channel.join_socket(line)
        self._is_left = False
        self._on_end_of(keeper)

    def confirm(self, posture: Mapping[str, Any], work_fd: int) -> None:
        """Take over what was compared after `come_back`."""
        self._resources.posture = posture
        self._resources.close_work()
        self._resources.work_fd = work_fd
        self._watch_on()

    @property
    def groups(self) -> sandbox_groups.Groups:
        """Cgroup directories of the sandbox."""
        return self._resources.groups

    @property
    def pid(self) -> int:
        """Process id of the keeper; every process of the sandbox is below it."""
        return self._resources.keeper.pid

    def fits(self, spec: SandboxSpec) -> bool:
        """Report whether only limits watched by the engine itself differ: the others are fixed."""
        limits = self._spec.limits
        same = all(getattr(limits, n) == getattr(spec.limits, n) for n in _FIXED)
        mine = replace(
            self._spec, sandbox_id=spec.sandbox_id, limits=spec.limits, is_awaited=spec.is_awaited
        )
        return same and mine == spec

    async def apply_limits(self, limits: Limits) -> None:
        """Do nothing: no kernel holds the limits that `fits` lets differ."""

    @property
    def fresh(self) -> KernelReadings:
        """Counters at the time when it was ready."""
        return self._fresh

    def readings(self) -> KernelReadings:
        """Return the cgroups' counters, without the allowance of gVisor itself."""
        groups = self._resources.groups
        disk_full, work_bytes = work_area.used(self._resources.work_fd)
        now, peak, kills = groups.memory()
        own = OWN_MEMORY_MB << 20
        refused = groups.processes_refused(groups.processes_peak())
        if self._resources.witness is not None:
            self._resources.witness.hear()
            refused += self._resources.witness.refused
        return KernelReadings(
            cpu_s=groups.cpu_s(),
            memory_bytes=max(0, now - own),
            # gVisor's allowance is part of the cgroup's limit: use above the limit is not the
            # program's.
            memory_peak_bytes=min(max(0, peak - own), self._spec.limits.memory_bytes),
            oom_kills=kills + self._hopeless + (0 if self._watch is None else self._watch.kills),
            processes_refused=refused,
            disk_full=disk_full,
            work_bytes=work_bytes,
        )

    def _give_up(self) -> None:
        self._hopeless = 1
        self.kill()

    def check_pausing(self) -> None:
        """Raise HostUnsupported if this host cannot pause it."""
        self._freezing.check()

    async def pause(self) -> None:
        """Freeze its processes; the keeper is not among them, and ends them with the engine."""
        if self._watch is not None:
            self._watch.stop()
        try:
            await self._freezing.pause()
        except BaseException:
            self._watch_on()
            raise

    async def resume(self) -> None:
        """Let its processes go on."""
        await self._freezing.resume()
        self._watch_on()

    def _watch_on(self) -> None:
        if self._watch is not None:
            self._watch.go_on()

    async def page_out(self) -> None:
        """Write its memory to swap, where this machine has some."""
        await self._freezing.page_out()

    def kill(self) -> None:
        """Kill the pid namespace, and the cgroup where that is possible."""
        if self.volumes is not None:
            self.volumes.is_ending = True
        self._resources.keeper.kill()
        self._resources.groups.kill()

    def _on_ended(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._resources.channel.poll()
        self._resources.channel.close("the sandbox's processes have ended")

    async def wait_ended(self) -> None:
        """Wait for the keeper's end, which comes last."""
        await self._resources.keeper.wait_ended()

    async def aclose(self) -> None:
        """Kill, wait and remove; a second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.kill()
        await self._freezing.end()
        await end(self._resources.keeper, self._resources.groups)
        if self._resources.witness is not None:
            self._resources.witness.close()
        self._resources.channel.close()
        # the descriptor kept the area alive, whose content is charged to the cgroup
        self._resources.close_work()
        await self._remove(self)

    def abandon(self) -> None:
        """Release the parent's descriptors without killing anything; for a forked child."""
        self._resources.keeper.abandon()
        if self._resources.outer is not None:
            self._resources.outer.close()
        self._resources.close_work()
        if self._resources.witness is not None:
            self._resources.witness.abandon()


async def end(keeper: Keeper, groups: sandbox_groups.Groups) -> None:
    """Kill a keeper's process tree and wait until the kernel lists none of it."""
    keeper.kill()
    groups.kill()
    try:
        async with asyncio.timeout(_END_S):
            await keeper.wait_ended()
    except TimeoutError:  # stopped, or starved: its child dies with it
        keeper.kill_hard()
        await keeper.wait_ended()
    keeper.close()
    for pid in groups.members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
