"""What a fork-server is started with, decided from this host and a template.

Not the start (`launch`), and not which fork-server is used for what (`fork_servers`). The
invariant: whichever way one is started, its plan, its filter and its ids are decided here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellwall.jail.inspect import host_facts
from cellwall.jail.plan import plan
from cellwall.linux import seccomp
from cellwall.linux import uid_ranges as uids
from cellwall.linux.cgroups import hierarchies
from cellwall.runtimes.jail.starting.launch import Settings
from cellwall.runtimes.shared.environment import INTERPRETER, inside_environment

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate

_INSIDE = "/tmp"  # noqa: S108 - a path inside
_PRELOAD_ENVIRONMENT = {
    "HOME": _INSIDE,
    "MPLCONFIGDIR": f"{_INSIDE}/matplotlib",
    "LD_BIND_NOW": "1",
}
"""Variables that only the preload has. Its /tmp is its own, and every sandbox mounts another over
it."""


def workers_on(cpus: int) -> dict[str, int]:
    """Number of processes of a fork-server that clone sandboxes, by the purpose of the sandboxes.

    For programs it is one more than there are CPUs: a worker stands still while its child locks
    down.
    """
    return {"program": max(2, cpus) + 1, "session": max(1, cpus // 2)}


class Ground(NamedTuple):
    """What of this host all fork-servers are started with."""

    facts: plan.HostFacts
    ids: uids.Ids
    layout: hierarchies.Layout
    refusals: str
    """Policy text of what the filter refuses here besides."""
    program: bytes
    """The seccomp filter of a usual sandbox."""

    @property
    def is_mover_kept(self) -> bool:
        """See `Settings`."""
        rootless = self.ids.rootless and not self.ids.are_shared
        return rootless and any(h.version == 1 for h in self.layout.hierarchies)


class Kind(NamedTuple):
    """Which kind of fork-server of a template is started; see `Settings`."""

    workers: Mapping[str, int]
    is_fast: bool
    is_rehearsed: bool
    lifeline: int = -1
    is_quick: bool = False
    needs_init: bool = True
    is_alike: bool = False
    for_images: bool = False
    """Whether its sandboxes are on images: it preloads nothing."""
    interpreter: str = ""


def ground_of(facts: plan.HostFacts, ids: uids.Ids, layout: hierarchies.Layout) -> Ground:
    """Decide on the filter of usual sandboxes."""
    refusals = "" if "memory" in layout.hard else seccomp.load_policy(plan.UNCOUNTED)
    program = seccomp.compile_policy(seccomp.load_policy(), os.uname().machine, refusals)
    return Ground(facts, ids, layout, refusals, program)


def has_single_programs(layout: hierarchies.Layout, *, is_fast: bool) -> bool:
    """Whether a sandbox of one program can do without an interpreter as its init.

    With a soft memory limit the engine waits for the end of the process, and only a full init
    reports enough about it.
    """
    return is_fast and "memory" in layout.hard and host_facts.runs_alone()


def found_ground(state_dir: Path) -> Ground:
    """Ask this host. Raises HostUnsupported."""
    return ground_of(host_facts.for_jails(state_dir), uids.find(), hierarchies.discover())


def settings_of(
    ground: Ground, template: BuiltTemplate, held: uids.UidRange, bundle: Path, kind: Kind
) -> Settings:
    """Return the configuration of one fork-server, whose sandboxes have ids of `held`."""
    return Settings(
        guest_path=bundle,
        template_path=Path(template.path),
        base_mounts=template.base_mounts,
        python=INTERPRETER,
        preload=() if kind.for_images else template.template.preload,
        environment=inside_environment(template, 1),
        preload_environment=_PRELOAD_ENVIRONMENT,
        uid_base=held.inner_base,
        uid_count=held.count,
        root_index=held.root_index,
        rootless=ground.ids.rootless,
        image_ids=ground.ids.image_lines,
        outer=None if held.outer is None else held.outer.as_json(),
        is_mover_kept=ground.is_mover_kept,
        workers=kind.workers,
        seccomp=ground.program,
        guest_main="cellwall.guest.init.main:main",
        guest_preload=f"cellwall.guest.warm.{'preload' if kind.needs_init else 'first'}",
        guest_reseed="cellwall.guest.process.reseed",
        guest_alone="cellwall.guest.warm.single_program",
        lifeline=kind.lifeline,
        is_quick=kind.is_quick,
        needs_init=kind.needs_init,
        is_alike=kind.is_alike,
        interpreter=kind.interpreter,
        is_fast=kind.is_fast,
        is_rehearsed=kind.is_rehearsed,
    )
