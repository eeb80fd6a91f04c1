"""gVisor as a runtime: `runsc` with an OCI bundle of our own, level `kernel`, no Docker.

The adapter between `engine`'s contract and `runsc`. The invariant: `start` returns a sandbox only
after its processes were found in our cgroups and in namespaces of their own, filtered and without
new privileges, and anything half made is destroyed before an error leaves it. Design:
design/0007-gvisor.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.jail import facts, hierarchies, leftovers, owner, plan
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes import gvisor_binary, gvisor_bundle, gvisor_posture, gvisor_root
from cellwall.runtimes.base import Finding, RuntimeStatistics, SandboxSpec, SweepReport
from cellwall.runtimes.channel import ChannelLost, GuestChannel
from cellwall.runtimes.environment import inside_environment
from cellwall.runtimes.guest_bundle import build_bundle
from cellwall.runtimes.gvisor_keeper import Keeper, launcher
from cellwall.runtimes.gvisor_sandbox import GvisorSandbox, Made, end, held
from cellwall.runtimes.jail_groups import GroupKeeper

if TYPE_CHECKING:
    from cellwall.jail import cgroups
    from cellwall.model.limits import Limits
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.gvisor_binary import Binary

_GUEST = ("cellwall.guest", "cellwall.runtimes.gvisor_boot")
_GUEST_ENTRY = "cellwall.runtimes.gvisor_boot:main"
_READY_S = 60.0
_TRY_S = 15.0
_NEEDED = frozenset({"memory", "pids", "cpu"})
_LENGTH = struct.Struct(">I")
_PRELOAD_ENVIRONMENT = {"MPLCONFIGDIR": f"{gvisor_root.WORK}/tmp/.matplotlib"}
HARDNESS = {
    "memory_mb": "hard",
    "processes": "hard",
    "cpus": "hard",
    "cpu_s": "hard",
    "disk_mb": "hard",
    "inodes": "soft",  # gVisor counts none; they cost memory, which is held
    "file_mb": "hard",
    "open_files": "hard",
}


class GvisorRuntime:
    """See the module."""

    name = "gvisor"
    level = IsolationLevel.KERNEL

    def __init__(self, state_dir: Path) -> None:
        """Touch nothing yet."""
        self._state_dir = state_dir
        self._folder = state_dir / "gvisor"
        self._live: set[GvisorSandbox] = set()
        self._started = self._failed = 0
        self._is_swept = False
        self._binary: Binary | None = None
        self._platform = ""
        self._asking = asyncio.Lock()

    # -- host, asked once ---------------------------------------------------------------------

    @cached_property
    def layout(self) -> hierarchies.Layout:
        """The cgroup hierarchies of this host that we may use."""
        return hierarchies.discover()

    @cached_property
    def _groups(self) -> GroupKeeper:
        return GroupKeeper(self.layout)

    @cached_property
    def _facts(self) -> plan.HostFacts:
        return facts.collect()

    @cached_property
    def _launcher(self) -> Path:
        return launcher(self._state_dir)

    @cached_property
    def _place(self) -> str:
        """Where each sandbox mounts the tmpfs of its own that `runsc` keeps its state in."""
        place = self._folder / "place"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(place)

    async def probe(self) -> list[Finding]:
        """Say which `runsc` there is, on which platform it runs, and what is missing."""
        try:
            self._check_host()
            binary, platform = await self._chosen()
        except HostUnsupported as error:
            return [Finding(error.feature, "FAIL", error.message, error.remedy or "")]
        return [
            Finding("runsc", "PASS", f"{binary.path} {binary.version}"),
            Finding("platform", "PASS", platform),
            Finding(
                "inodes",
                "CAUTION",
                "gVisor counts no files; limits.inodes is held by the memory they take",
            ),
        ]

    def _check_host(self) -> None:
        if os.geteuid() != 0:
            raise HostUnsupported(
                "root", "gVisor: runsc needs root to make its namespaces", remedy="run as root"
            )
        missing = sorted(_NEEDED - self.layout.hard)
        if missing:
            raise HostUnsupported(
                "cgroups",
                f"gVisor: no cgroup controller {', '.join(missing)} ({self.layout.why_not})",
                remedy="run where these controllers can be used; `cellwall doctor` names them",
            )

    async def _chosen(self) -> tuple[Binary, str]:
        """The binary and the platform it runs on; asked once."""
        async with self._asking:
            if self._binary is None or not self._platform:
                binary = await asyncio.to_thread(_find)
                platforms = gvisor_binary.Platforms(self._folder)
                self._platform = await platforms.choose(binary, self._try_platform)
                self._binary = binary
        return self._binary, self._platform

    async def _try_platform(self, binary: Binary, platform: str) -> str:
        """Run `true` on it, for so long and no longer; return why it did not work."""
        from cellwall.model.limits import Limits

        limits = Limits()
        template = plan.Root("/usr", (), str(self._launcher))
        root = await asyncio.to_thread(
            gvisor_root.make_root, self._folder / "roots", self._facts, template
        )
        oci = gvisor_bundle.configuration(root, limits, ("/usr/bin/true",))
        groups = await self._groups.make(_at_start(limits))
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            keeper = Keeper(self._launcher, self._config(binary, platform, oci, groups), null)
        finally:
            os.close(null)
        reason = ""
        try:
            async with asyncio.timeout(_TRY_S):
                if await keeper.wait_ended():
                    reason = keeper.said()[-300:] or "it ended without a word"
        except TimeoutError:
            reason = f"it did not run `true` within {_TRY_S:g} s"
        finally:
            await end(keeper, groups)
            await self._groups.remove(groups)
        return reason

    def _config(
        self,
        binary: Binary,
        platform: str,
        oci: dict[str, Any],
        groups: cgroups.Groups,
        cpus: frozenset[int] = frozenset(),
    ) -> dict[str, Any]:
        """What the launcher needs to know."""
        place = self._place
        flags = gvisor_bundle.flags(binary.flags, platform, place)
        words = [binary.path, *flags, "run", f"--bundle={place}/bundle", "sandbox"]
        return {
            "program": binary.path,
            "words": words,
            "place": place,
            "cgroups": groups.entrance_paths(),
            "cpus": sorted(cpus or os.sched_getaffinity(0)),
            "oci": oci,
        }

    async def warm(self, template: BuiltTemplate) -> None:
        """Find out what to run and make the template's root."""
        await self._chosen()
        await self._root(template)

    async def _root(self, template: BuiltTemplate) -> gvisor_root.Root:
        bundle = build_bundle(self._state_dir, _GUEST, _GUEST_ENTRY)
        wanted = plan.Root(template.path, template.base_mounts, str(bundle))
        return await asyncio.to_thread(
            gvisor_root.make_root, self._folder / "roots", self._facts, wanted
        )

    # -- sandboxes ----------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> GvisorSandbox:
        """Start one sandbox, or raise and leave nothing behind."""
        weak = sorted(name for name, how in HARDNESS.items() if how == "soft")
        if spec.demand_hard and weak:
            raise HostUnsupported(
                "hard limits",
                f"gVisor: start a sandbox with hard limits: {', '.join(weak)} can only be held "
                "softly",
                remedy="use isolation='namespace' (runtime 'jail') where all limits must be hard",
            )
        self._check_host()
        if not self._is_swept:
            self._is_swept = True
            await self.sweep()
        try:
            sandbox = await self._start(spec)
        except BaseException:
            self._failed += 1
            raise
        self._started += 1
        self._live.add(sandbox)
        return sandbox

    async def _start(self, spec: SandboxSpec) -> GvisorSandbox:
        binary, platform = await self._chosen()
        root = await self._root(spec.template)
        oci = gvisor_bundle.configuration(root, spec.limits, gvisor_bundle.guest_words())
        groups = await self._groups.make(_at_start(spec.limits))
        config = self._config(binary, platform, oci, groups)
        ours, theirs = socket.socketpair()
        try:
            keeper = Keeper(self._launcher, config, theirs.fileno())
        except BaseException:
            ours.close()
            await self._groups.remove(groups)
            raise
        finally:
            theirs.close()
        try:
            return await self._confine(spec, keeper, groups, ours, (config, binary.version))
        except BaseException as error:
            said = keeper.said()
            await asyncio.shield(self._discard(keeper, groups))
            if isinstance(error, (ChannelLost, OSError)):
                raise SandboxBroken(
                    f"gVisor: start sandbox {spec.sandbox_id}: {error}",
                    remedy=f"runsc said: {said or 'nothing'}",
                ) from error
            raise

    async def _discard(self, keeper: Keeper, groups: cgroups.Groups) -> None:
        await end(keeper, groups)
        await self._groups.remove(groups)

    async def _confine(
        self,
        spec: SandboxSpec,
        keeper: Keeper,
        groups: cgroups.Groups,
        ours: socket.socket,
        asked: tuple[dict[str, Any], str],
    ) -> GvisorSandbox:
        """Hear `ready`, compare what runs with what was asked for, set the limits."""
        text = json.dumps(_guest_config(spec)).encode()
        ours.sendall(_LENGTH.pack(len(text)) + text)
        channel = GuestChannel(ours, on_violation=lambda _: keeper.kill())
        keeper.on_end(lambda: channel.close("runsc has ended"))
        try:
            await channel.wait_ready(_READY_S)
            posture = await asyncio.to_thread(gvisor_posture.verify, groups, keeper.pid)
            groups.begin()
            groups.apply(held(spec.limits))
        except BaseException:
            channel.close()
            raise
        config, version = asked
        digest = gvisor_bundle.digest(config["oci"], config["words"], version)
        isolation = Isolation(self.name, self.level, digest, dict(HARDNESS))
        return GvisorSandbox(
            spec, Made(keeper, channel, groups, isolation, posture), self._take_down
        )

    async def _take_down(self, sandbox: GvisorSandbox) -> None:
        await self._groups.remove(sandbox.groups)
        self._live.discard(sandbox)

    def statistics(self) -> RuntimeStatistics:
        """Counts."""
        left = self._groups.quarantined if "_groups" in vars(self) else 0
        detail = {"cgroups_not_removed": left}
        return RuntimeStatistics(len(self._live), self._started, self._failed, detail)

    async def sweep(self) -> SweepReport:
        """Remove cgroups, and what still runs in them, of engines that are gone."""
        removed, kept = await asyncio.to_thread(leftovers.sweep, self.layout, owner.is_dead)
        return SweepReport({"cgroups": removed} if removed else {}, tuple(kept))

    async def aclose(self) -> None:
        """Destroy every sandbox."""
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._live)))
        if "_groups" in vars(self):
            self._groups.close()
            del self._groups

    def abandon(self) -> None:
        """In a forked child: let go of the parent's descriptors, end nothing."""
        for sandbox in self._live:
            sandbox.abandon()
        self._live.clear()


def _find() -> Binary:
    return gvisor_binary.inspect(gvisor_binary.find())


def _at_start(limits: Limits) -> Limits:
    """Limits while gVisor and the interpreter start: every CPU, so that parking is quick."""
    from dataclasses import replace

    return replace(held(limits), cpus=float(os.cpu_count() or 1))


def _guest_config(spec: SandboxSpec) -> dict[str, Any]:
    """What the boot inside needs; the caller's environment travels here, not in a file."""
    environment = {**inside_environment(spec.template, spec.limits.cpus), **spec.env}
    return {
        "directories": [list(pair) for pair in gvisor_root.WORK_DIRECTORIES],
        "warm": spec.start == "fork",
        "preload": list(spec.template.template.preload),
        "preload_environment": _PRELOAD_ENVIRONMENT,
        "guest": {
            "home": gvisor_root.HOME,
            "env": environment,
            "contexts": list(spec.contexts),
            "purpose": spec.purpose,
            "are_callers_named": True,
        },
    }


__all__ = ["CellwallError", "GvisorRuntime"]
