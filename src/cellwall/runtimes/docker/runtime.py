"""Docker runtime: a container for each sandbox, parked ones ahead, leftovers found by label.

The adapter between the engine's contract (`runtimes.base`) and the container engine's API. `docker`
shares the host's kernel; `docker+runsc` is the same with a registered gVisor, a kernel of its own.
The invariant: `start` returns a sandbox only after the kernel's report equals the request, and
every object made is removed before an error is raised; what cannot be removed now (no daemon) is
remembered.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import os
import socket
from collections.abc import Coroutine
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cellwall.jail.inspect import host_facts
from cellwall.jail.inspect.posture import PostureMismatch
from cellwall.jail.plan import plan
from cellwall.linux import owner_label, seccomp
from cellwall.linux.syscalls import landlock
from cellwall.model.errors import CellwallError, HostUnsupported, NotFound, SandboxBroken
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.model.template import BuiltTemplate
from cellwall.runtimes.base import (
    Finding,
    RuntimeStatistics,
    SandboxSpec,
    SweepReport,
    refuse_changes,
    refuse_network,
    refuse_profile,
    refuse_soft,
)
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.docker import (
    cgroups,
    container,
    ids,
    image_containers,
    inside_image,
    posture,
)
from cellwall.runtimes.docker.attached import AttachedSocket
from cellwall.runtimes.docker.container import GID
from cellwall.runtimes.docker.daemon import Daemon, Refused, broken
from cellwall.runtimes.docker.images import Images
from cellwall.runtimes.docker.inside import document
from cellwall.runtimes.docker.sandbox import DockerSandbox, SandboxResources, note_limits
from cellwall.runtimes.roots import ImageRoot
from cellwall.runtimes.shared import network_listeners
from cellwall.runtimes.shared.environment import inside_environment
from cellwall.runtimes.shared.freezing import ThawGuard

if TYPE_CHECKING:
    from cellwall.linux.cgroups import hierarchies
    from cellwall.runtimes.volumes.holder import Holder

T = TypeVar("T")
_READY_TIMEOUT_S = 60.0
_PRELOAD_FROM_MB = 256
"""MiB of the memory limit from which on a container imports its template's modules at the start;
they count against that limit."""

_HOST_FILES = (
    *("/proc/cmdline", "/proc/swaps", "/proc/sys/kernel/core_pattern"),
    "/proc/sys/kernel/random/boot_id",
)
"""Files that identify this machine, in parts of /proc that programs need."""


class _Begun(NamedTuple):
    """A running container whose confinement is not verified yet."""

    container: str
    stream: AttachedSocket
    channel: GuestChannel


class DockerRuntime:
    """The runtime `docker`; see the module."""

    name = "docker"
    level = IsolationLevel.NAMESPACE
    oci_runtime: str | None = None
    """Daemon's name for the program that runs containers; None is its default."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self.daemon = Daemon()
        self.images = Images(state_dir, self.daemon)
        self._live: set[DockerSandbox] = set()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._left: set[str] = set()
        self.guard = ThawGuard()
        """Containers, by id or name, that could not be removed because the daemon was away."""
        self._started = self._failed = 0
        self._next_cpu = 0
        self._ids = ids.ContainerIds()
        self._ranges = image_containers.Ranges()
        self._options: tuple[str, ...] | None = None
        """The daemon's security options; None: not asked yet."""
        self._is_swept = False

    # -- host, asked once ---------------------------------------------------------------------

    @cached_property
    def _owner(self) -> str:
        return owner_label.new_label()

    @cached_property
    def _volumes(self) -> Holder:
        from cellwall.runtimes.volumes.holder import Holder  # most engines have no volume

        return Holder(self._state_dir)

    @cached_property
    def _layout(self) -> hierarchies.Layout:
        return cgroups.layout()

    @cached_property
    def _masked(self) -> tuple[str, ...]:
        """Paths of /proc and /sys that programs inside do not need."""
        host = host_facts.collect()
        kept = plan.PROC_KEPT | plan.PROC_SYNTHETIC
        names = (*host.proc_files, *host.proc_closed, *host.proc_directories)
        entries = (f"/proc/{name}" for name in names if name not in kept)
        return ("/sys", *_HOST_FILES, *entries)

    @cached_property
    def _lock(self) -> dict[str, Any]:
        return {
            "seccomp": _program(),
            "landlock_abi": landlock.abi(),
            "is_own_kernel": self.oci_runtime is not None,
        }

    @cached_property
    def _root_program(self) -> str:
        """The filter of root inside an image."""
        return _program(seccomp.load_policy(plan.ROOT_INSIDE))

    async def probe(self) -> list[Finding]:
        """Ask the daemon what it offers."""
        try:
            info = await self.daemon.call("ask the Docker daemon", lambda api: api.info())
        except HostUnsupported as error:
            return [Finding(error.feature, "FAIL", error.message, error.remedy or "")]
        except CellwallError as error:
            return [Finding("docker daemon", "FAIL", error.message, "look at its log")]
        found = [
            Finding("docker daemon", "PASS", f"version {info.get('ServerVersion', 'unknown')}")
        ]
        options = " ".join(info.get("SecurityOptions") or ())
        if "seccomp" not in options:
            remedy = "use a Docker daemon built with seccomp"
            found.append(Finding("docker seccomp", "FAIL", "it takes no filters", remedy))
        missing = {"memory", "pids", "cpu"} - self._layout.hard
        if missing:
            what = f"no {', '.join(sorted(missing))} controller to read here"
            found.append(Finding("cgroups", "FAIL", what, "run where the daemon runs"))
        if self.oci_runtime is not None and self.oci_runtime not in (info.get("Runtimes") or {}):
            remedy = (
                "install gVisor (apt-get install runsc) and register it with the daemon as "
                f"{self.oci_runtime!r}; docs/docker.md shows how"
            )
            what = f"the daemon has no runtime {self.oci_runtime!r}"
            found.append(Finding("docker runtime", "FAIL", what, remedy))
        if self.oci_runtime is None:
            found.append(await asyncio.to_thread(network_listeners.finding))
        else:
            found.append(network_listeners.missing())
        return found

    async def warm(self, template: BuiltTemplate) -> None:
        """Make sure that the daemon has the template's image."""
        await self.images.ensure(template)

    # -- sandboxes ----------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> DockerSandbox:
        """Start one container, or raise and leave nothing behind."""
        refuse_soft(spec, self._hardness(), self.name)
        refuse_changes(spec, self.name)
        refuse_profile(spec, self.name)
        if self.oci_runtime is not None:
            refuse_network(spec, self.name)
        starting = self._begin(self._start_with_volumes(spec))
        try:
            sandbox = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._begin(self._discard_unwanted(starting))
            raise
        except BaseException:
            self._failed += 1
            raise
        if spec.has_network:
            await self._open_network(sandbox)
        self._started += 1
        return sandbox

    async def _open_network(self, sandbox: DockerSandbox) -> None:
        try:
            await sandbox.way_out.prepare()
        except BaseException:
            self._failed += 1
            await sandbox.aclose()
            raise

    async def _discard_unwanted(self, starting: asyncio.Task[DockerSandbox]) -> None:
        with contextlib.suppress(CellwallError):  # then there is nothing to discard
            await (await starting).aclose()

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` to its end in a task; `aclose` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _start_with_volumes(self, spec: SandboxSpec) -> DockerSandbox:
        """Start a sandbox that has its volumes mounted until it is removed."""
        if not spec.volumes:
            return await self._start(spec)
        from cellwall.runtimes.volumes import containers  # most engines have no volume

        maps_ids = ids.maps_ids(await self._security_options())
        has_own_kernel = self.oci_runtime is not None
        containers.check(spec, self.name, maps_ids=maps_ids, has_own_kernel=has_own_kernel)
        lease = await self._volumes.hold(spec.volumes)
        try:
            sandbox = await self._start(spec)
        except BaseException:
            await self._volumes.release(lease)
            raise
        sandbox.volumes = lease
        return sandbox

    async def _start(self, spec: SandboxSpec) -> DockerSandbox:
        if not self._is_swept:
            await self.sweep()
            self._is_swept = True
        await self._remove_left()
        try:
            return await self._build(spec)
        except Refused as error:
            if error.status != 404:
                raise broken(error) from error
        # The image was removed. No data of the caller has been handed over yet.
        self.images.forget(spec.template)
        try:
            return await self._build(spec)
        except Refused as error:
            raise broken(error) from error

    async def _build(self, spec: SandboxSpec) -> DockerSandbox:
        image = await self.images.ensure(spec.template)
        name = container.NAME_PREFIX + spec.sandbox_id
        uid = await self._take_id(spec)
        try:
            begun = await self._run(spec, name, image, uid)
            try:
                sandbox = await self._confine(spec, begun, uid)
            except BaseException:
                begun.channel.close()
                raise
        except BaseException:
            # By its name: a call that failed may have made the container all the same.
            await self._remove_container(name)
            self._give_back(uid)
            raise
        self._live.add(sandbox)
        return sandbox

    async def _take_id(self, spec: SandboxSpec) -> int:
        """Return the container's user id, or on an image the host's id that is 0 inside.

        It is the usual one if the daemon maps ids itself.
        """
        options = await self._security_options()
        maps_ids = ids.maps_ids(options)
        if spec.image is not None:
            own_kernel = self.oci_runtime is not None
            image_containers.check(self.name, options, maps_ids=maps_ids, has_own_kernel=own_kernel)
            return self._ranges.take()
        return plan.INSIDE_UID if maps_ids else self._ids.take()

    def _give_back(self, uid: int) -> None:
        self._ids.give_back(uid)
        self._ranges.give_back(uid)

    async def _security_options(self) -> tuple[str, ...]:
        if self._options is None:
            info = await self.daemon.call("ask the Docker daemon", lambda api: api.info())
            self._options = tuple(info.get("SecurityOptions") or ())
        return self._options

    async def _run(self, spec: SandboxSpec, name: str, image: str, uid: int) -> _Begun:
        body = container.request(
            spec.limits,
            sandbox_id=spec.sandbox_id,
            owner=self._owner,
            image=image,
            oci_runtime=self.oci_runtime,
            cpu_set=self._choose_cpus(spec.limits.cpus),
            masked=self._masked,
            uid=uid,
            purpose=spec.purpose,
        )
        if spec.image is not None:
            body = await self._on_image(spec, spec.image, body)
        made = await self.daemon.create(name, body)
        first = b"".join(map(document, self._documents(spec, uid)))
        if spec.volumes:
            sock = await self._run_with_volumes(spec, made, first, uid)
        else:
            sock = await self.daemon.run_attached(made, first)
        stream = AttachedSocket(sock)
        channel = GuestChannel(stream, on_violation=lambda _: self.kill_by_daemon(made))
        return _Begun(made, stream, channel)

    async def _run_with_volumes(
        self, spec: SandboxSpec, made: str, first: bytes, uid: int
    ) -> socket.socket:
        """Run a container that has its volumes before it is told anything.

        On a template they get their places; on an image `inside_image` takes them there.
        """
        from cellwall.runtimes.volumes import containers

        if spec.image is None:
            paths, shown = [*container.volume_points(spec)], containers.on_template(uid, GID)
        else:
            paths = [f"{inside_image.VIEWS}/{number}" for number in range(len(spec.volumes))]
            shown = containers.on_image(uid)
        sock = await self.daemon.run_attached(made, b"")
        try:
            pid = int((await self.daemon.inspect(made))["State"]["Pid"])
            process = pid, partial(posture.verify_place, pid, made)
            await containers.attach(self._volumes, spec.volumes, paths, shown, process)
            await asyncio.to_thread(sock.sendall, first)
        except BaseException as error:
            sock.close()
            if not isinstance(error, (OSError, PostureMismatch)):
                raise
            raise HostUnsupported(
                "volumes",
                f"volumes: {self.name}: attach them to container {made[:12]}: {error}",
                remedy="run cellwall where the Docker daemon runs, or use runtime 'jail'",
            ) from error
        return sock

    async def _on_image(
        self, spec: SandboxSpec, image: ImageRoot, body: dict[str, Any]
    ) -> dict[str, Any]:
        from cellwall.runtimes.shared import own_interpreter  # most engines use no image

        interpreter = await asyncio.to_thread(
            own_interpreter.build, self._state_dir, spec.template.base_python
        )
        options = await self._security_options()
        return image_containers.request(body, image, interpreter, options)

    def _documents(self, spec: SandboxSpec, uid: int) -> tuple[dict[str, Any], ...]:
        """Return what the first process reads: its lockdown, then the guest's configuration."""
        if spec.image is not None:
            lock = {**self._lock, **image_containers.lock(spec.image)}
            if spec.image.uid == 0:
                lock["seccomp"] = self._root_program
            guest = image_containers.guest(spec, spec.image)
            return image_containers.order(spec.limits, uid, spec.volumes), lock, guest
        guest = {
            "home": plan.HOME,
            "env": {**inside_environment(spec.template, spec.limits.cpus), **spec.env},
            "contexts": list(spec.contexts),
            "language": spec.language,
            "preload": self._preload(spec),
            "are_callers_named": self.oci_runtime is not None,
        }
        return {**self._lock, "volumes": [each.path for each in spec.volumes]}, guest

    def _preload(self, spec: SandboxSpec) -> list[str]:
        is_room = spec.limits.memory_mb >= _PRELOAD_FROM_MB
        return list(spec.template.template.preload) if is_room else []

    def _choose_cpus(self, share: float) -> str:
        """Return the next CPUs in turn, as many as the share rounded up; "" for all of them."""
        allowed = sorted(os.sched_getaffinity(0))
        count = max(1, math.ceil(share))
        if count >= len(allowed):
            return ""
        first = self._next_cpu
        self._next_cpu = (first + count) % len(allowed)
        return ",".join(str(allowed[(first + i) % len(allowed)]) for i in range(count))

    async def _confine(self, spec: SandboxSpec, begun: _Begun, uid: int) -> DockerSandbox:
        """Compare the confinement, wait for `ready`, set the limits.

        SECURITY: until this returns no task can send the guest any data of a caller.
        """
        looking = self._begin(self.daemon.inspect(begun.container))
        try:
            await begun.channel.wait_ready(_READY_TIMEOUT_S)
        except ChannelLost as error:
            with contextlib.suppress(CellwallError):
                await looking
            raise SandboxBroken(
                f"{self.name}: start sandbox {spec.sandbox_id}: {error.message}",
                remedy=f"its first process said: {begun.stream.said or 'nothing'}",
            ) from error
        pid = int((await looking)["State"]["Pid"])
        pidfd = -1
        work_fds = list[int]()
        try:
            pidfd = os.pidfd_open(pid)
            digest = self._verified(pid, begun.container, spec, uid)
            self._open_work(pid, spec, work_fds)
            groups = cgroups.groups_of(self._layout, pid, begun.container)
            held, own_bytes = self._held(spec)
            most = held.processes + container.OWN_PROCESSES
            if most < container.START_PROCESSES:
                await self.daemon.update(begun.container, {"PidsLimit": most})
            note_limits(groups, held)
            groups.begin()
        except BaseException as error:
            for fd in (pidfd, *work_fds):
                if fd >= 0:
                    os.close(fd)
            if not isinstance(error, (OSError, PostureMismatch)):
                raise
            raise SandboxBroken(
                f"{self.name}: confine sandbox {spec.sandbox_id}: {error}",
                remedy="is the daemon on this machine, and of a version that knows what we ask?",
            ) from error
        whose = "shared" if spec.image is None else "own"
        isolation = Isolation(self.name, self.level, digest, self._hardness(), whose)
        resources = SandboxResources(
            *(begun.container, pid, pidfd, tuple(work_fds), begun.channel, groups, isolation),
            own_kernel_bytes=own_bytes,
            uid=uid,
        )
        return DockerSandbox(self, spec, resources)

    def _held(self, spec: SandboxSpec) -> tuple[Limits, int]:
        """Return the cgroups' limits, and how many bytes of them are not the program's."""
        if self.oci_runtime is None:
            return spec.limits, 0
        held = container.held_for_own_kernel(spec.limits, spec.purpose)
        return held, container.OWN_KERNEL_MB << 20

    def _verified(self, pid: int, made: str, spec: SandboxSpec, uid: int) -> str:
        points = container.volume_points(spec)
        posture.verify_volumes(pid, points)
        writable = tuple(point for point, is_read_only in points.items() if not is_read_only)
        if spec.image is not None:
            on_image = posture.ImageIds(uid, spec.image.uid, spec.image.gid, writable)
            return posture.verify_on_image(pid, made, spec.limits, self._masked, on_image)
        return posture.verify(pid, made, spec.limits, self._masked, uid, writable)

    def _open_work(self, pid: int, spec: SandboxSpec, opened: list[int]) -> None:
        """Open the work area through the first process's own view of the file system."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        area = container.WORK_AREA if spec.image is None else image_containers.WORK_AREA
        for path in area:
            opened.append(os.open(f"/proc/{pid}/root{path}", flags))  # noqa: PERF401 - one by one

    def _hardness(self) -> dict[str, str]:
        names = ("memory_mb", "processes", "cpus", "cpu_s", "disk_mb", "inodes")
        return dict.fromkeys((*names, "file_mb", "open_files"), "hard")

    # -- ends ---------------------------------------------------------------------------------

    def kill_by_daemon(self, made: str) -> None:
        """Have the daemon kill a container, in the background."""
        self._begin(self._kill(made))

    async def _kill(self, made: str) -> None:
        with contextlib.suppress(CellwallError):  # the container is removed later in any case
            await self.daemon.kill(made)

    async def remove(self, sandbox: DockerSandbox, made: str) -> None:
        """Remove the container of a dead sandbox; later, if the daemon is away now."""
        await self._remove_container(made)
        self._live.discard(sandbox)
        self._give_back(sandbox.uid)
        if sandbox.volumes is not None:
            await self._volumes.release(sandbox.volumes)

    async def _remove_container(self, made: str) -> None:
        try:
            await self.daemon.remove(made)
        except NotFound:
            pass
        except CellwallError:
            self._left.add(made)

    async def _remove_left(self) -> int:
        left, self._left = self._left, set()
        for made in left:
            await self._remove_container(made)
        return len(left - self._left)

    def statistics(self) -> RuntimeStatistics:
        """Return the runtime's counts."""
        detail = {"containers_not_removed": len(self._left)}
        return RuntimeStatistics(len(self._live), self._started, self._failed, detail)

    async def sweep(self) -> SweepReport:
        """Remove containers of owners that are gone, by their exact label."""
        try:
            removed = await self._remove_left()
            found = await self.daemon.containers()
        except HostUnsupported as error:
            return SweepReport({}, tuple(f"{each}: {error.message}" for each in self._left))
        kept = []
        for each in found:
            label = (each.get("Labels") or {}).get(container.OWNER_LABEL, "")
            if not owner_label.is_dead(label):
                continue
            try:
                await self.daemon.remove(each["Id"])
                removed += 1
            except CellwallError as error:
                kept.append(f"container {each['Id'][:12]}: {error.message}")
        return SweepReport({"containers": removed} if removed else {}, tuple(kept))

    async def aclose(self) -> None:
        """Destroy every container; idempotent."""
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._live)))
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._live)))
        if "_volumes" in vars(self):
            await self._volumes.aclose()
        await asyncio.to_thread(self.guard.end)
        self._ranges.close()
        self.daemon.close()

    def abandon(self) -> None:
        """Release the parent's descriptors without ending a container; for a forked child."""
        self.guard.abandon()
        for sandbox in self._live:
            sandbox.abandon()
        self._live.clear()
        if "_volumes" in vars(self):
            self._volumes.abandon()


class DockerRunscRuntime(DockerRuntime):
    """The runtime `docker+runsc`: gVisor's kernel runs between the code and the host's kernel."""

    name = "docker+runsc"
    level = IsolationLevel.KERNEL
    oci_runtime: str | None = "runsc"

    def _verified(self, pid: int, made: str, spec: SandboxSpec, uid: int) -> str:
        return posture.verify_own_kernel(pid, made)

    def _open_work(self, pid: int, spec: SandboxSpec, opened: list[int]) -> None:
        """Open nothing: the files are in gVisor's kernel and not visible from the host."""

    def _hardness(self) -> dict[str, str]:
        return {**super()._hardness(), "inodes": "soft"}  # gVisor does not count inodes


def _program(*more: str) -> str:
    """Return the seccomp filter, as text; the policy texts `more` allow more."""
    machine = os.uname().machine
    program = seccomp.compile_policy(seccomp.load_policy(), machine, more=more)
    return base64.b64encode(program).decode()
