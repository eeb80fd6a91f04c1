"""gVisor runtime: `runsc` with an OCI bundle of cellwall's own, level `kernel`, without Docker.

The adapter between the engine's contract (`runtimes.base`) and `runsc`. The invariant: `start`
returns a sandbox only after its processes were found in the expected cgroups and in namespaces of
their own, filtered and without new privileges; a half-made sandbox is destroyed before an error is
raised. Design: design/0007-gvisor.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import socket
import struct
import time
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.jail.inspect import host_facts, probe_counts
from cellwall.jail.plan import plan
from cellwall.linux import owner_label, seccomp
from cellwall.linux.cgroups import hierarchies, leftovers
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes.base import (
    Finding,
    RuntimeGone,
    RuntimeStatistics,
    SandboxSpec,
    SweepReport,
    refuse_changes,
    refuse_profile,
    refuse_soft,
)
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.channel.stand_by import wake
from cellwall.runtimes.gvisor import binary as gvisor_binary
from cellwall.runtimes.gvisor import guest_image, oci_bundle, trace_listener
from cellwall.runtimes.gvisor import network as gvisor_network
from cellwall.runtimes.gvisor import posture as gvisor_posture
from cellwall.runtimes.gvisor import root as gvisor_root
from cellwall.runtimes.gvisor import work_area as gvisor_area
from cellwall.runtimes.gvisor.binary import Binary
from cellwall.runtimes.gvisor.keeper import Keeper, Keepers, launcher
from cellwall.runtimes.gvisor.network import Outer
from cellwall.runtimes.gvisor.sandbox import GvisorSandbox, SandboxResources, end, held
from cellwall.runtimes.gvisor.trace_listener import Witness
from cellwall.runtimes.gvisor.trees import abilities, continuing, writing
from cellwall.runtimes.gvisor.trees.copying import TreeCopier, Ways
from cellwall.runtimes.shared import network_listeners
from cellwall.runtimes.shared.cgroup_keeper import GroupKeeper
from cellwall.runtimes.shared.cpu_placement import Cpus
from cellwall.runtimes.shared.environment import (
    OWN_PYTHON,
    image_environment,
    inside_environment,
)
from cellwall.runtimes.shared.freezing import FreezerThreads, Freezing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cellwall.linux.cgroups import sandbox_groups
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.shared.saved_tree import SavedTree
    from cellwall.runtimes.volumes.holder import Holder

_READY_S = 60.0
_TRY_S = 15.0
_ROOT_KEPT_S = 60.0
"""Seconds for which a root counts as current: checking it takes 20 ms."""
_NEEDED = frozenset({"memory", "pids", "cpu"})
_LENGTH = struct.Struct(">I")
_PRELOAD_ENVIRONMENT = {"MPLCONFIGDIR": "/tmp/matplotlib"}  # noqa: S108 - a path inside
HARDNESS = {
    "memory_mb": "hard",
    "processes": "hard",
    "cpus": "hard",
    "cpu_s": "hard",
    "disk_mb": "hard",
    "inodes": "hard",
    "file_mb": "hard",
    "open_files": "hard",
}


class Chosen(NamedTuple):
    """The binary and platform that run sandboxes on this host."""

    binary: Binary
    platform: str


class _Kept(NamedTuple):
    """A root that existed when it was last checked."""

    root: gvisor_root.Root
    until: float
    """Expiry by the monotonic clock, in seconds."""


class _Born(NamedTuple):
    """Host resources of a sandbox besides its processes."""

    groups: sandbox_groups.Groups
    witness: Witness | None = None
    cpus: frozenset[int] = frozenset()
    digest: str = ""
    outer: Outer | None = None
    order: dict[str, Any] = {}  # noqa: RUF012 - nothing adds to it
    lineage: str = ""


class GvisorRuntime:
    """The runtime `gvisor`; see the module."""

    name = "gvisor"
    level = IsolationLevel.KERNEL
    idle_s = 600.0
    """Seconds, see `base.KeepsReady`; the engine sets it."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._folder = state_dir / "gvisor"
        self._live: set[GvisorSandbox] = set()
        self._started = self._failed = 0
        self._is_swept = False
        self._roots: dict[tuple[str, bool], _Kept] = {}
        self._chosen: Chosen | None = None
        self._able: tuple[Chosen, abilities.Abilities] | None = None
        """What `runsc` can copy, and of which choice that is said."""
        self._sinks = self._folder / "sinks"
        self._trees = self._folder / "trees"
        self.cpus = Cpus()
        self._freezer_threads = FreezerThreads()
        self._asking = asyncio.Lock()

    # -- host, asked once ---------------------------------------------------------------------

    @cached_property
    def layout(self) -> hierarchies.Layout:
        """Cgroup hierarchies of this host that may be used."""
        return hierarchies.discover()

    @cached_property
    def _groups(self) -> GroupKeeper:
        return GroupKeeper(self.layout)

    @cached_property
    def _facts(self) -> plan.HostFacts:
        return host_facts.collect()

    @cached_property
    def _launcher(self) -> Path:
        return launcher(self._state_dir)

    @cached_property
    def _volumes(self) -> Holder:
        from cellwall.runtimes.volumes.holder import Holder  # most engines have no volume

        return Holder(self._state_dir)

    @cached_property
    def _place(self) -> str:
        """Directory on which each sandbox mounts its own tmpfs, for the state of `runsc`."""
        place = self._folder / "place"
        for folder in (place, self._trees):  # what a start makes is not left by a copy
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(place)

    @cached_property
    def _keepers(self) -> Keepers:
        return Keepers(self._launcher, self._place, self.idle_s)

    async def probe(self) -> list[Finding]:
        """Report which `runsc` there is, on which platform it runs, and what is missing."""
        try:
            self._check_host()
            chosen = await self.choose()
        except HostUnsupported as error:
            return [Finding(error.feature, "FAIL", error.message, error.remedy or "")]
        return [
            Finding("runsc", "PASS", f"{chosen.binary.path} {chosen.binary.version}"),
            Finding("platform", "PASS", chosen.platform),
            *gvisor_binary.cautions(chosen.binary),
            await asyncio.to_thread(network_listeners.finding),
        ]

    def _check_host(self) -> None:
        if os.geteuid() != 0:
            raise HostUnsupported(
                "root", "gVisor: runsc needs root to make its namespaces", remedy="run as root"
            )
        probe_counts.check_open_files(probe_counts.LEAST_OPEN_FILES)
        missing = sorted(_NEEDED - self.layout.hard)
        if missing:
            raise HostUnsupported(
                "cgroups",
                f"gVisor: no cgroup controller {', '.join(missing)} ({self.layout.why_not})",
                remedy="run where these controllers can be used; `cellwall doctor` names them",
            )

    async def choose(self) -> Chosen:
        """Return the binary and its platform; determined once while the binary exists.

        `RuntimeGone` if it existed and does not any more.
        """
        async with self._asking:
            if self._chosen is not None and not os.access(self._chosen.binary.path, os.X_OK):
                path, self._chosen = self._chosen.binary.path, None
                raise RuntimeGone("runsc", f"gVisor: {path} is gone", remedy=gvisor_binary.INSTALL)
            if self._chosen is None:
                binary = await asyncio.to_thread(_find)
                platforms = gvisor_binary.Platforms(self._folder)
                self._chosen = Chosen(binary, await platforms.choose(binary, self._try_platform))
        return self._chosen

    async def _try_platform(self, binary: Binary, platform: str) -> str:
        """Run `true` on the platform within a time limit; return why it did not work."""
        async with self._tried(Chosen(binary, platform), ("/usr/bin/true",)) as (keeper, line):
            line.close()
            try:
                async with asyncio.timeout(_TRY_S):
                    failed = await keeper.wait_ended() != 0
            except TimeoutError:
                return f"it did not run `true` within {_TRY_S:g} s"
            return (keeper.said()[-300:] or "it ended without a word") if failed else ""

    @contextlib.asynccontextmanager
    async def _tried(
        self, chosen: Chosen, words: tuple[str, ...]
    ) -> AsyncIterator[tuple[Keeper, socket.socket]]:
        """Run a program of the host without a guest, with a line to its descriptor 0."""
        limits = Limits()
        template = plan.Root("/usr", (), str(self._launcher))
        root = await asyncio.to_thread(
            gvisor_root.make_root, self._folder / "roots", self._facts, template
        )
        oci = oci_bundle.configuration(root, limits, words, self._place)
        groups = await self._groups.make(_at_start(limits))
        order = self._order(chosen, oci, oci_bundle.area(root, limits), _Born(groups))
        keeper = self._keepers.take()
        try:
            with keeper.begin(order) as line:
                yield keeper, line
        finally:
            await self._discard(keeper, groups)

    def _order(
        self,
        chosen: Chosen,
        oci: dict[str, Any],
        area: dict[str, Any],
        born: _Born,
        *,
        has_network: bool = False,
    ) -> dict[str, Any]:
        witness = born.witness
        flags = oci_bundle.flags(
            chosen.binary.flags, chosen.platform, self._place, has_network=has_network
        )
        files = {"config.json": json.dumps(oci)}
        if has_network:
            files[oci_bundle.RESOLVER] = f"nameserver {gvisor_network.NAME_SERVER}\n"
        if witness is not None:
            files["witness.json"] = json.dumps(witness.configuration())
            flags.append(f"--{trace_listener.FLAG}={self._place}/bundle/witness.json")
        return {
            "program": chosen.binary.path,
            "words": [chosen.binary.path, *flags, "run", f"--bundle={self._place}/bundle", "cell"],
            "filter": seccomp.refusing(oci_bundle.HIDDEN, platform.machine()).hex(),
            "directory": "/" if witness is None else str(self._sinks),
            "cgroups": born.groups.self_move_paths(),
            "cpus": sorted(born.cpus or os.sched_getaffinity(0)),
            "files": files,
            "covered": [oci_bundle.ROOT_ONLY] if has_network else [],
            "area": area,
            "volumes": 0,
            "is_saved": False,
        }

    async def warm(self, template: BuiltTemplate) -> None:
        """Choose the binary and platform and make the template's root."""
        await self.choose()
        await self._root(template)
        self._keepers.make_ready_soon()

    async def _root(self, template: BuiltTemplate, *, on_image: bool = False) -> gvisor_root.Root:
        """Return the template's root; checked again periodically, because the host may change.

        `on_image`: what a sandbox on an image is shown besides that, with the template's guest.
        """
        key = (template.digest, on_image)
        kept = self._roots.get(key)
        now = time.monotonic()
        if kept is None or now > kept.until or not os.access(kept.root.path, os.X_OK):
            make = self._make_image_root if on_image else self._make_root
            root = await asyncio.to_thread(make, template)
            kept = self._roots[key] = _Kept(root, now + _ROOT_KEPT_S)
        return kept.root

    def _make_image_root(self, template: BuiltTemplate) -> gvisor_root.Root:
        from cellwall.runtimes.shared import own_interpreter  # most engines use no image

        bundle = guest_image.bundle_in(self._state_dir)
        interpreter = own_interpreter.build(self._state_dir, template.base_python)
        library = own_interpreter.library_of(interpreter)
        code = guest_image.build_image(self._state_dir, template, bundle, plan.GUEST_PATH, library)
        return gvisor_root.make_image_root(self._folder / "roots", bundle, code, interpreter)

    def _make_root(self, template: BuiltTemplate) -> gvisor_root.Root:
        bundle = guest_image.bundle_in(self._state_dir)
        image = guest_image.build_image(self._state_dir, template, bundle, plan.GUEST_PATH)
        wanted = plan.Root(template.path, template.base_mounts, str(bundle))
        return gvisor_root.make_root(self._folder / "roots", self._facts, wanted, image)

    # -- sandboxes ----------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> GvisorSandbox:
        """Start one sandbox, or raise and leave nothing behind."""
        refuse_soft(spec, HARDNESS, "gVisor")
        refuse_changes(spec, self.name)
        refuse_profile(spec, self.name)
        self._check_host()
        if not self._is_swept:
            self._is_swept = True
            await self.sweep()
        lease = await self._volumes.hold(spec.volumes) if spec.volumes else None
        try:
            sandbox = await self._start(spec)
        except BaseException:
            self._failed += 1
            if lease is not None:
                await asyncio.shield(self._volumes.release(lease))
            raise
        sandbox.volumes = lease
        self._started += 1
        self._live.add(sandbox)
        self._keepers.make_ready_soon()
        return sandbox

    async def _start(self, spec: SandboxSpec) -> GvisorSandbox:
        chosen = await self.choose()
        image = spec.image
        root = await self._root(spec.template, on_image=image is not None)
        words = oci_bundle.guest_words(image)
        oci = oci_bundle.configuration(
            root, spec.limits, words, self._place, has_network=spec.has_network, image=image
        )
        area = oci_bundle.area(root, spec.limits, image, spec.volumes)
        if spec.volumes:
            oci["mounts"] += oci_bundle.volume_binds(spec.volumes, self._place)
        groups = await self._groups.make(_at_start(spec.limits))
        born = _Born(groups)
        try:
            if trace_listener.FLAG in chosen.binary.flags:
                born = born._replace(witness=Witness(self._sinks))
            born = born._replace(cpus=self.cpus.take(oci_bundle.cpu_count(spec.limits)))
            order = self._order(chosen, oci, area, born, has_network=spec.has_network)
            order["volumes"] = len(spec.volumes)
            if spec.volumes:
                order["words"].insert(1, oci_bundle.SHARED)
            born = born._replace(digest=_digest(chosen, order), order=order)
            born = born._replace(
                lineage=continuing.lineage(chosen.binary.digest, chosen.platform, born.digest)
            )
            if spec.saved is not None:
                continuing.check_lineage(spec.saved, born.lineage)
                order = continuing.restoring(order, self._place)
            keeper = self._keepers.take()
        except BaseException:
            await self._take_down(born)
            raise
        try:
            if spec.has_network:
                born = born._replace(outer=await gvisor_network.connect(keeper))
            ours = await self._begun(keeper, order, spec)
            return await self._confine(spec, keeper, ours, born)
        except BaseException as error:
            said = keeper.said()
            await asyncio.shield(self._discard(keeper, groups, born))
            if isinstance(error, (ChannelLost, OSError)):
                raise SandboxBroken(
                    f"gVisor: start sandbox {spec.sandbox_id}: {error}",
                    remedy=f"runsc said: {said or 'nothing'}",
                ) from error
            raise

    async def _begun(
        self, keeper: Keeper, order: dict[str, Any], spec: SandboxSpec
    ) -> socket.socket:
        """Have a keeper begin, with views of the sandbox's volumes, or what it continues from."""
        if spec.saved is not None:
            return continuing.begun_from(keeper, order, spec.saved)
        with contextlib.ExitStack() as held:
            views = []
            for each in spec.volumes:
                view = await self._volumes.view(each, oci_bundle.VOLUME_IDS)
                held.callback(os.close, view)
                views.append(view)
            return keeper.begin(order, views)

    async def _discard(
        self, keeper: Keeper, groups: sandbox_groups.Groups, born: _Born | None = None
    ) -> None:
        await end(keeper, groups)
        await self._take_down(born or _Born(groups))

    async def _confine(
        self, spec: SandboxSpec, keeper: Keeper, ours: socket.socket, born: _Born
    ) -> GvisorSandbox:
        """Wait for `ready`, compare the processes with the request, set the limits."""
        if spec.saved is None:
            text = json.dumps(_guest_config(spec)).encode()
            ours.sendall(_LENGTH.pack(len(text)) + text)
        channel = GuestChannel(ours, on_violation=lambda _: keeper.kill())
        keeper.on_end(lambda: channel.close("runsc has ended"))
        try:
            if spec.saved is None:
                await channel.wait_ready(_READY_S)
            else:
                saved = spec.saved
                channel.go_on_after(saved.last_id)
                await wake(channel, saved.epoch, copy=True, reseed=saved.reseed)
            posture = await asyncio.to_thread(gvisor_posture.verify, born.groups, keeper.pid)
            born.groups.begin()
            born.groups.apply(held(spec.limits, spec.purpose))
            work_fd = gvisor_area.open_area(keeper.pid, self._place)
        except BaseException:
            channel.close()
            raise
        if spec.saved is not None:
            channel.tell("release")
        isolation = Isolation(self.name, self.level, born.digest, dict(HARDNESS))
        resources = SandboxResources(
            keeper, born.witness, channel, born.groups, isolation, posture, work_fd, born.outer
        )
        resources.order, resources.lineage = born.order, born.lineage

        async def remove(sandbox: GvisorSandbox) -> None:
            self._live.discard(sandbox)
            await self._take_down(born)
            if sandbox.volumes is not None:
                await self._volumes.release(sandbox.volumes)

        freezing = Freezing(self._groups.tree, self._freezer_threads, born.groups)
        return GvisorSandbox(spec, resources, remove, freezing)

    # -- copies -------------------------------------------------------------------------------

    @cached_property
    def copier(self) -> TreeCopier:
        """What copies whole sandboxes."""
        return TreeCopier(Ways(self._trees, self._abilities, self._bring_back))

    async def _abilities(self) -> abilities.Abilities:
        """Return how the chosen `runsc` writes a sandbox down, asked once. HostUnsupported."""
        chosen = await self.choose()
        if self._able is not None and self._able[0] is chosen:
            return self._able[1]
        flags = oci_bundle.flags(chosen.binary.flags, chosen.platform, self._place)
        runsc = [chosen.binary.path, *flags]

        async def tried(_binary: Binary, _name: str) -> str:
            async with self._tried(chosen, abilities.ECHO) as (keeper, line):
                return await abilities.shown(keeper, line, runsc, self._trees)

        platforms = gvisor_binary.Platforms(self._folder)
        name = f"{chosen.platform} copies"
        trial = None
        if gvisor_binary.leaves_running(chosen.binary):
            trial = partial(platforms.why_not, chosen.binary, name, tried)
        known = await asyncio.to_thread(gvisor_binary.flags_of, chosen.binary.path, "checkpoint")
        found = await abilities.of(chosen.binary, runsc, known, trial)
        self._able = (chosen, found)
        return found

    async def _bring_back(self, sandbox: GvisorSandbox, saved: SavedTree) -> None:
        """Start a sandbox again, in its own cgroups, from what was written down of it."""
        order = continuing.restoring(dict(sandbox.order), self._place)
        witness = None
        if "witness.json" in order["files"]:
            witness = Witness(self._sinks)
            described = json.dumps(witness.configuration())
            order["files"] = {**order["files"], "witness.json": described}
        keeper = self._keepers.take()
        line = continuing.begun_from(keeper, order, saved)
        await sandbox.come_back(keeper, line, witness)
        await wake(sandbox.channel, saved.epoch, renewed=True)
        posture = await asyncio.to_thread(gvisor_posture.verify, sandbox.groups, keeper.pid)
        sandbox.confirm(posture, gvisor_area.open_area(keeper.pid, self._place))
        sandbox.channel.tell("release")
        self._keepers.make_ready_soon()

    async def _take_down(self, born: _Born) -> None:
        """Remove an ended sandbox's resources besides its processes."""
        if born.witness is not None:
            born.witness.close()
        if born.outer is not None:
            born.outer.close()
        self.cpus.give_back(born.cpus)
        await self._groups.remove(born.groups)

    def statistics(self) -> RuntimeStatistics:
        """Return the runtime's counts."""
        left = self._groups.quarantined if "_groups" in vars(self) else 0
        detail = {"cgroups_not_removed": left}
        return RuntimeStatistics(len(self._live), self._started, self._failed, detail)

    async def sweep(self) -> SweepReport:
        """Remove cgroups with their processes, and sockets, of engines that are gone."""
        judge = owner_label.is_dead_in_this_boot
        removed, kept = await asyncio.to_thread(leftovers.sweep, self.layout, judge)
        sockets = await asyncio.to_thread(trace_listener.sweep, self._sinks)
        trees = await asyncio.to_thread(writing.sweep, self._trees)
        counts = {"cgroups": removed, "sockets": sockets, "trees": trees}
        return SweepReport({name: n for name, n in counts.items() if n}, tuple(kept))

    async def wait_settled(self) -> None:
        """Start the next keeper now, so that counts of processes are stable."""
        if "_keepers" in vars(self):
            self._keepers.settle()

    async def aclose(self) -> None:
        """Destroy every sandbox."""
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._live)))
        if "_keepers" in vars(self):
            await self._keepers.aclose()
        if "_volumes" in vars(self):
            await self._volumes.aclose()
        if "_groups" in vars(self):
            self._groups.close()
            del self._groups
        await self._freezer_threads.aclose()

    def abandon(self) -> None:
        """Release the parent's descriptors without ending a sandbox; for a forked child."""
        self._freezer_threads.guard.abandon()
        for sandbox in self._live:
            sandbox.abandon()
        self._live.clear()
        if "_keepers" in vars(self):
            self._keepers.abandon()
        if "_volumes" in vars(self):
            self._volumes.abandon()


def _find() -> Binary:
    return gvisor_binary.inspect(gvisor_binary.find())


def _digest(chosen: Chosen, order: dict[str, Any]) -> str:
    """Return the digest of a request; equal for one template and one set of limits."""
    words = [word for word in order["words"] if not word.startswith("--root=")]
    return oci_bundle.digest(
        order["files"]["config.json"], order["area"], words, chosen.binary.version
    )


def _at_start(limits: Limits) -> Limits:
    """Return the limits during the start: with every CPU, so that parking is quick."""
    return replace(held(limits), cpus=float(os.cpu_count() or 1))


def _guest_config(spec: SandboxSpec) -> dict[str, Any]:
    """Return the configuration for the boot, with the caller's environment, kept in no file."""
    image = spec.image
    if image is None:
        environment = inside_environment(spec.template, spec.limits.cpus)
    else:
        environment = image_environment(image, spec.limits.cpus)
    return {
        "warm": spec.start == "fork" and image is None,
        "placeholder": oci_bundle.PLACEHOLDER,
        "is_awaited": spec.is_awaited,
        "preload": list(spec.template.template.preload),
        "preload_environment": _PRELOAD_ENVIRONMENT,
        "guest": {
            "home": gvisor_root.HOME if image is None else image.working_dir,
            "is_image": image is not None,
            "own_python": [] if image is None else list(OWN_PYTHON),
            "env": {**environment, **spec.env},
            "contexts": list(spec.contexts),
            "language": spec.language,
            "purpose": spec.purpose,
            "are_callers_named": True,
        },
    }
