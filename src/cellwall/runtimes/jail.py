"""The embedded jail as a runtime: fork-servers by template, cgroups, posture, sandboxes.

The adapter between `engine`'s contract and `jail`; the only module that knows both. The
invariant: `start` returns a sandbox only after the kernel's report of init and of every context
equals the plan's expectation, and anything half made is destroyed before an error leaves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellwall.jail import (
    cgroups,
    facts,
    owner,
    plan,
    posture,
    probe,
    seccomp,
    soft,
    supervisor,
    uids,
)
from cellwall.jail.steps import Lockdown
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.model.template import BuiltTemplate
from cellwall.runtimes.base import (
    Finding,
    KernelReadings,
    RuntimeStatistics,
    SandboxSpec,
    SweepReport,
)
from cellwall.runtimes.channel import GuestChannel
from cellwall.runtimes.guest_bundle import build_bundle

_BUNDLE = (
    "cellwall.guest",
    "cellwall.jail.linux",
    *(
        f"cellwall.jail.{name}"
        for name in (
            "apply",
            "boot",
            "entry",
            "fds",
            "forkserver",
            "inside",
            "lockdown",
            "plan",
            "seccomp",
            "steps",
        )
    ),
)
_READY_TIMEOUT_S = 30.0
_MAX_FORKS = 10_000
_MAX_AGE_S = 1800.0
"""A fork-server's address layout and hash seed are shared by its forks; this bounds for how long."""
_REMOVE_TRIES = 100
_WATCH_S = 0.05
_SHAPES_KEPT = 256
_PRELOAD_ENVIRONMENT = {"HOME": "/tmp", "MPLCONFIGDIR": "/tmp/matplotlib"}  # noqa: S108
"""Only the preload sees these: its own /tmp, which every sandbox covers with one of its own."""
_PYTHON_INSIDE = f"{plan.TEMPLATE_ROOT}/bin/python"


def inside_environment(template: BuiltTemplate, cpus: float) -> dict[str, str]:
    """The whole environment of a sandbox, made from nothing."""
    count = str(max(1, math.ceil(cpus)))
    environment = {
        "PATH": f"{plan.TEMPLATE_ROOT}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": plan.HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "VIRTUAL_ENV": plan.TEMPLATE_ROOT,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
        environment[f"{name}_NUM_THREADS"] = count
    return {**environment, **template.template.env}


def shape_of(limits: Limits, layout: cgroups.Layout, *, rootless: bool) -> plan.Shape:
    """The part of limits that is built in at the start."""
    return plan.Shape(
        cpus=max(1, math.ceil(limits.cpus)),
        memory_mb=limits.memory_mb,
        disk_mb=limits.disk_mb,
        inodes=limits.inodes,
        processes=limits.processes,
        file_mb=limits.file_mb,
        open_files=limits.open_files,
        soft_memory="memory" not in layout.hard,
        rootless=rootless,
    )


def hardness_of(limits: Limits, layout: cgroups.Layout) -> dict[str, str]:
    """How each limit is held on this host."""
    hard = layout.hard
    return {
        "memory_mb": "hard" if "memory" in hard else "soft",
        "processes": "hard",
        "cpus": "hard" if "cpu" in hard or limits.cpus == int(limits.cpus) else "soft",
        "cpu_s": "hard" if hard or layout.hierarchies else "soft",
        "disk_mb": "hard",
        "inodes": "hard",
        "file_mb": "hard",
        "open_files": "hard",
    }


class JailSandbox:
    """One live jail."""

    def __init__(
        self,
        runtime: JailRuntime,
        server: supervisor.ForkServer,
        spec: SandboxSpec,
        made: _Made,
    ) -> None:
        """Take over what `JailRuntime._build` made and checked."""
        self._runtime = runtime
        self._server = server
        self._spec = spec
        self._made = made
        self._limits = spec.limits
        self._cpus: frozenset[int] = frozenset()
        self._watch = made.child.watch()
        self._closing: asyncio.Task[None] | None = None
        self.soft_kills = 0
        self._peak_bytes = 0

    @property
    def isolation(self) -> Isolation:
        """Which isolation really runs."""
        return self._made.isolation

    @property
    def posture(self) -> Mapping[str, Any]:
        """The facts of init as the kernel reports them now; see `jail.posture`."""
        return posture.read(self._made.child.pid)

    @property
    def channel(self) -> GuestChannel:
        """The connection to init."""
        return self._made.channel

    @property
    def is_closing(self) -> bool:
        """Whether it is on its way out; its pid may belong to somebody else any moment."""
        return self._closing is not None

    @property
    def pid(self) -> int:
        """The host's pid of init."""
        return self._made.child.pid

    def fits(self, spec: SandboxSpec) -> bool:
        """Built-in limits must be equal, lowerable ones not lower than asked for."""
        ours, theirs = self._spec.limits, spec.limits
        built_in = ("memory_mb", "disk_mb", "inodes")
        lowerable = ("processes", "file_mb", "open_files")
        return (
            spec.template.digest == self._spec.template.digest
            and spec.contexts == self._spec.contexts
            and spec.start == self._spec.start == "fork"
            and dict(spec.env) == dict(self._spec.env)
            and math.ceil(ours.cpus) == math.ceil(theirs.cpus)
            and all(getattr(ours, name) == getattr(theirs, name) for name in built_in)
            and all(getattr(ours, name) >= getattr(theirs, name) for name in lowerable)
            and not (spec.demand_hard and "soft" in self.isolation.hardness.values())
        )

    async def apply_limits(self, limits: Limits) -> None:
        """Lower what the kernel holds, from outside, before caller code runs."""
        self._made.groups.apply(limits)
        for name, number, size in (
            ("processes", resource.RLIMIT_NPROC, limits.processes + 2),
            ("file_mb", resource.RLIMIT_FSIZE, limits.file_mb * 1024 * 1024),
            ("open_files", resource.RLIMIT_NOFILE, limits.open_files),
        ):
            if getattr(limits, name) != getattr(self._limits, name):
                for pid in self._made.pids:
                    resource.prlimit(pid, number, (size, size))
        self._limits = limits
        self.pin()

    def pin(self) -> None:
        """Show and give the sandbox as many CPUs as its quota has, the least used ones."""
        self._runtime.unpin(self._cpus)
        self._cpus = self._runtime.choose_cpus(max(1, math.ceil(self._limits.cpus)))
        for pid in self._made.pids if self._cpus else ():
            os.sched_setaffinity(pid, self._cpus)

    def readings(self) -> KernelReadings:
        """Counters of the cgroup, or sums over the tree where there is none."""
        if self._runtime.layout.having("memory") is None:
            sums = self.sums()
            self._peak_bytes = max(self._peak_bytes, sums.memory_bytes)
            return KernelReadings(
                cpu_s=max(sums.cpu_s, self._made.groups.cpu_s()),
                memory_bytes=sums.memory_bytes,
                memory_peak_bytes=self._peak_bytes,
                oom_kills=self.soft_kills,
                disk_full=self._disk_full(),
            )
        groups = self._made.groups
        now, peak, kills = groups.memory()
        return KernelReadings(
            cpu_s=groups.cpu_s(),
            memory_bytes=now,
            memory_peak_bytes=peak,
            oom_kills=kills,
            processes_refused=groups.processes_refused(),
            processes_peak=groups.processes_peak(),
            disk_full=self._disk_full(),
        )

    def sums(self) -> soft.Sums:
        """Count from outside what no cgroup counts for us."""
        used = 0
        if self._made.work_fd >= 0:
            status = os.fstatvfs(self._made.work_fd)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return soft.read(self._made.child.pid, used)

    def _disk_full(self) -> bool:
        """SECURITY: a descriptor opened before caller code existed; no path is resolved here."""
        if self._made.work_fd < 0:
            return False
        status = os.fstatvfs(self._made.work_fd)
        return status.f_bavail == 0 or status.f_favail == 0

    @property
    def memory_limit_bytes(self) -> int:
        """The limit that applies now, for the soft watchdog."""
        return self._limits.memory_bytes

    def kill(self) -> None:
        """Kill init by its pidfd; the kernel kills the pid namespace."""
        self._made.child.kill()
        self._made.groups.kill()

    async def wait_ended(self) -> None:
        """Return when init is gone, which the kernel delays until all others are."""
        await asyncio.shield(self._watch)

    async def aclose(self) -> None:
        """Kill, wait and remove; a second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.kill()
        await self.wait_ended()
        self._made.channel.close()
        self._runtime.unpin(self._cpus)
        await self._runtime.remove(self, self._server, self._made)


@dataclass(slots=True)
class _Made:
    """What one sandbox has on the host."""

    child: supervisor.Spawned
    channel: GuestChannel
    groups: cgroups.Groups
    uid_index: int
    pids: tuple[int, ...]
    isolation: Isolation
    work_fd: int


@dataclass(slots=True)
class _Server:
    """A fork-server and how many live sandboxes it has."""

    server: supervisor.ForkServer
    uids: uids.UidRange
    live: int = 0


class JailRuntime:
    """See the module."""

    name = "jail"
    level = IsolationLevel.NAMESPACE

    def __init__(self, state_dir: Path) -> None:
        """Touch nothing yet."""
        self._state_dir = state_dir
        self._facts: plan.HostFacts | None = None
        self._servers: dict[str, _Server] = {}
        self._retired: list[_Server] = []
        self._locks: dict[str, asyncio.Lock] = {}
        self._groups: cgroups.EngineGroups | None = None
        self._layout: cgroups.Layout | None = None
        self._rootless: bool | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="cellwall-cgroup")
        self._namespaces: dict[str, str] = {}
        self._cpu_load: Counter[int] = Counter()
        self._live: set[JailSandbox] = set()
        self._started = self._failed = self._leaked = 0
        self._watchdog: asyncio.Task[None] | None = None
        self._seccomp = b""
        self._verifier = posture.Verifier()
        self._decisions: dict[plan.Shape, tuple[Lockdown, str]] = {}

    # -- host ---------------------------------------------------------------------------------

    @property
    def layout(self) -> cgroups.Layout:
        """The cgroup hierarchies of this host that we may use."""
        if self._layout is None:
            self._layout = cgroups.discover()
        return self._layout

    @property
    def rootless(self) -> bool:
        """Whether every sandbox runs under our own id; see `jail.uids`."""
        if self._rootless is None:
            self._rootless = uids.is_rootless()
        return self._rootless

    def _shape(self, limits: Limits) -> plan.Shape:
        return shape_of(limits, self.layout, rootless=self.rootless)

    @property
    def host_facts(self) -> plan.HostFacts:
        """The facts every plan is made from."""
        if self._facts is None:
            self._facts = facts.collect()
        return self._facts

    async def probe(self) -> list[Finding]:
        """Check each host feature in throw-away processes."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, probe.run)
        return [Finding(f.feature, f.grade, f.detail, f.remedy) for f in found]

    def choose_cpus(self, count: int) -> frozenset[int]:
        """The `count` least pinned CPUs; empty when that is all of them."""
        allowed = sorted(os.sched_getaffinity(0))
        if count >= len(allowed):
            return frozenset()
        chosen = sorted(allowed, key=lambda cpu: self._cpu_load[cpu])[:count]
        self._cpu_load.update(chosen)
        return frozenset(chosen)

    def unpin(self, cpus: frozenset[int]) -> None:
        """Undo one `choose_cpus`."""
        self._cpu_load.subtract(cpus)

    # -- fork-servers -------------------------------------------------------------------------

    async def warm(self, template: BuiltTemplate) -> None:
        """Start the template's fork-server if it does not run."""
        await self._server(template)

    async def _server(self, template: BuiltTemplate) -> _Server:
        lock = self._locks.setdefault(template.digest, asyncio.Lock())
        async with lock:
            current = self._servers.get(template.digest)
            if current is not None and not self._is_worn(current):
                return current
            if current is not None:
                self._retire(template.digest)
            made = await self._start_server(template)
            self._servers[template.digest] = made
            return made

    @staticmethod
    def _is_worn(entry: _Server) -> bool:
        server = entry.server
        age = asyncio.get_running_loop().time() - server.started_at
        return not server.is_usable or server.forks >= _MAX_FORKS or age > _MAX_AGE_S

    def _retire(self, digest: str) -> None:
        self._retired.append(self._servers.pop(digest))

    async def _start_server(self, template: BuiltTemplate) -> _Server:
        if not self._seccomp:
            self._seccomp = seccomp.compile_policy(seccomp.load_policy(), os.uname().machine)
            self._namespaces = posture.host_namespaces()
        held = uids.single() if self.rootless else uids.acquire()
        settings = supervisor.Settings(
            guest_path=build_bundle(self._state_dir, _BUNDLE, "cellwall.jail.entry:main"),
            template_path=Path(template.path),
            base_mounts=template.base_mounts,
            python=_PYTHON_INSIDE,
            preload=template.template.preload,
            environment={**inside_environment(template, 1), **_PRELOAD_ENVIRONMENT},
            uid_base=held.base,
            uid_count=held.count,
            rootless=self.rootless,
            workers=max(2, os.cpu_count() or 1),
            seccomp=self._seccomp,
            guest_main="cellwall.guest.init:main",
            guest_preload="cellwall.guest.preload",
            guest_reseed="cellwall.guest.reseed",
        )
        server = supervisor.ForkServer(settings, self.host_facts)
        try:
            await server.start()
        except BaseException:
            held.release()
            raise
        return _Server(server, held)

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
        entry = await self._server(spec.template)
        entry.live += 1
        try:
            sandbox = await self._build(entry, spec, hardness)
        except BaseException:
            entry.live -= 1
            self._failed += 1
            raise
        self._started += 1
        self._live.add(sandbox)
        sandbox.pin()
        if hardness["memory_mb"] == "soft" and self._watchdog is None:
            self._watchdog = asyncio.get_running_loop().create_task(self._watch_softly())
        return sandbox

    async def _build(
        self, entry: _Server, spec: SandboxSpec, hardness: dict[str, str]
    ) -> JailSandbox:
        index = entry.uids.take()
        groups: cgroups.Groups | None = None
        child: supervisor.Spawned | None = None
        try:
            groups = self._engine_groups().create(spec.sandbox_id, spec.limits)
            child = await self._spawn(entry, spec, index)
            return await self._confine(entry, spec, hardness, (index, groups, child))
        except BaseException as error:
            if child is not None:
                child.discard()
            if groups is not None:
                await self._remove_groups(groups)
            entry.uids.give_back(index)
            if isinstance(error, posture.PostureMismatch):
                raise SandboxBroken(f"sandbox {spec.sandbox_id}: {error}") from error
            raise

    def _engine_groups(self) -> cgroups.EngineGroups:
        if self._groups is None:
            self._groups = cgroups.EngineGroups(self.layout, owner.new_label())
        return self._groups

    async def _spawn(self, entry: _Server, spec: SandboxSpec, index: int) -> supervisor.Spawned:
        guest = {
            "home": plan.HOME,
            "env": {**inside_environment(spec.template, spec.limits.cpus), **spec.env},
            "contexts": list(spec.contexts),
        }
        return await entry.server.spawn(
            shape=self._shape(spec.limits), uid=index, guest=guest, start=spec.start
        )

    async def _confine(
        self,
        entry: _Server,
        spec: SandboxSpec,
        hardness: dict[str, str],
        parts: tuple[int, cgroups.Groups, supervisor.Spawned],
    ) -> JailSandbox:
        """Place, hear "L", compare, say "G", hear `ready`, compare the contexts."""
        index, groups, child = parts
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, groups.join, child.pid)
        supervisor.say(child, b"M")
        await supervisor.hear(child, b"L")
        lockdown, digest = self._decided(self._shape(spec.limits))
        want = posture.expected(
            lockdown,
            (entry.uids.host_uid(index), entry.uids.host_gid(index)),
            groups.expected_lines(),
            self._namespaces,
        )
        self._verifier.verify(child.pid, want)
        self._verifier.verify_mounts(child.pid)
        work_fd = os.open(f"/proc/{child.pid}/root/tmp", os.O_PATH | os.O_CLOEXEC)
        supervisor.say(child, b"G")
        channel = GuestChannel(child.channel, on_violation=lambda _: child.kill())
        try:
            await channel.wait_ready(_READY_TIMEOUT_S)
            contexts = posture.children(child.pid)
            for pid in contexts:
                self._verifier.verify(pid, want)
        except BaseException:
            channel.close()
            os.close(work_fd)
            raise
        isolation = Isolation(self.name, self.level, digest, hardness)
        made = _Made(child, channel, groups, index, (child.pid, *contexts), isolation, work_fd)
        return JailSandbox(self, entry.server, spec, made)

    def _decided(self, shape: plan.Shape) -> tuple[Lockdown, str]:
        """The lockdown a shape must show, and the posture's digest; computed once for each."""
        if shape not in self._decisions:
            what = plan.sandbox_plan(self.host_facts, shape)
            digest = posture.digest(what.lockdown, plan.digest(what.steps))
            self._decisions[shape] = (what.lockdown, digest)
            while len(self._decisions) > _SHAPES_KEPT:
                del self._decisions[next(iter(self._decisions))]
        return self._decisions[shape]

    async def remove(
        self, sandbox: JailSandbox, server: supervisor.ForkServer, made: _Made
    ) -> None:
        """Take down what a dead sandbox had on the host."""
        # SECURITY: numbers are given out again; nobody may use these once they are closed.
        os.close(made.work_fd)
        made.work_fd = -1
        os.close(made.child.pidfd)
        made.child.pidfd = -1
        await self._remove_groups(made.groups)
        self._live.discard(sandbox)
        for entry in (*self._servers.values(), *self._retired):
            if entry.server is server:
                entry.live -= 1
                entry.uids.give_back(made.uid_index)
        for entry in [e for e in self._retired if e.live <= 0]:
            self._retired.remove(entry)
            await entry.server.aclose()
            entry.uids.release()

    async def _remove_groups(self, groups: cgroups.Groups) -> None:
        """rmdir says EBUSY until the kernel has let go of the last task; try for a second."""
        loop = asyncio.get_running_loop()
        for _ in range(_REMOVE_TRIES):
            if not await loop.run_in_executor(self._threads, groups.remove):
                return
            await asyncio.sleep(0.01)
        self._leaked += 1

    async def _watch_softly(self) -> None:
        """Where no memory cgroup holds them: sum and kill, twenty times a second."""
        while self._live:
            for sandbox in [s for s in self._live if not s.is_closing]:
                if sandbox.sums().memory_bytes > sandbox.memory_limit_bytes:
                    sandbox.soft_kills += 1
                    sandbox.kill()
            await asyncio.sleep(_WATCH_S)
        self._watchdog = None

    def statistics(self) -> RuntimeStatistics:
        """Counts."""
        detail = {
            "fork_servers": len(self._servers) + len(self._retired),
            "forks": sum(e.server.forks for e in self._servers.values()),
            "cgroups_not_removed": self._leaked,
        }
        return RuntimeStatistics(len(self._live), self._started, self._failed, detail)

    async def sweep(self) -> SweepReport:
        """Remove cgroups, and what still runs in them, of engines that are gone."""
        loop = asyncio.get_running_loop()
        removed, kept = await loop.run_in_executor(
            self._threads, cgroups.sweep, self.layout, owner.is_dead
        )
        return SweepReport({"cgroups": removed}, tuple(kept))

    async def aclose(self) -> None:
        """Destroy every sandbox and fork-server."""
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._live)))
        for entry in (*self._servers.values(), *self._retired):
            await entry.server.aclose()
            entry.uids.release()
        self._servers.clear()
        self._retired.clear()
        if self._watchdog is not None:
            self._watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watchdog
        if self._groups is not None:
            self._groups.remove()
        self._threads.shutdown(wait=False)
