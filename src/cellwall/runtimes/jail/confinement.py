"""Confinement in the jail runtime: from a clone to a sandbox that is known to be confined.

Runs on asyncio in the engine process. Cloning a sandbox, and discarding one that fails, is in
`runtime`; `jail.plan.plan` computes the expected posture and `jail.inspect.posture` reads the real
one. The invariant: `confine` returns only after the kernel's report of init and of every context
equals the plan's expectation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cellwall.guest.channel.handshake import IDLE
from cellwall.jail.inspect import posture
from cellwall.jail.plan import image_plan, plan
from cellwall.jail.plan.steps import Lockdown
from cellwall.linux.cgroups import sandbox_groups
from cellwall.linux.syscalls import id_maps
from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.base import SandboxSpec
from cellwall.runtimes.channel.channel import MOST_HELD_BYTES, GuestChannel
from cellwall.runtimes.jail.child import Child, hear, hear_alone
from cellwall.runtimes.jail.fork_servers import Entry
from cellwall.runtimes.jail.single_program.channel import AloneChannel, Parts

if TYPE_CHECKING:
    from cellwall.runtimes.jail.keeping.record import KeptSandbox

_READY_TIMEOUT_S = 30.0
_SHAPES_KEPT = 256


class ClonedChild(NamedTuple):
    """A sandbox that has been cloned and is not yet known to be confined."""

    child: Child
    groups: sandbox_groups.Groups
    uid_index: int
    leaving: asyncio.Task[None]
    """Task that is done when the worker that cloned the sandbox has left the sandbox's cgroups."""
    has_left: bool
    """Whether the worker had left when it answered; otherwise the engine has to wait for it."""
    shape: plan.Shape
    """What it was cloned with."""


class Shapes(NamedTuple):
    """What is built in of a kept sandbox."""

    made: plan.Shape
    """As it was started."""
    limited: plan.Shape
    """With the limits that were lowered since."""


class Confined(NamedTuple):
    """What is known of a sandbox whose posture was compared."""

    channel: GuestChannel
    contexts: tuple[int, ...]
    work_fd: int
    """File descriptor of its work area, opened before caller code exists."""
    digest: str
    """Digest of its posture."""


def _is_whole(spec: SandboxSpec, contexts: Sequence[int]) -> bool:
    """Whether all its processes exist and a caller waits, so that the caller may have it at once.

    It is not ready at that time. Init reads what is sent to it once its context is ready.
    """
    is_usual = spec.purpose != "session" and spec.language == "python" and spec.start == "fork"
    return spec.is_awaited and is_usual and len(contexts) == len(spec.contexts) == 1


async def _heard(child: Child, spec: SandboxSpec) -> GuestChannel:
    """Return the channel once the child is locked down and has forked its contexts."""
    if spec.purpose == "single_program":
        listener, is_idle = await hear_alone(child, IDLE)
        stdout, stderr = child.outputs
        child.outputs.clear()
        return AloneChannel(
            Parts(child.channel, (stdout, stderr), listener, is_idle),
            child.pid,
            on_violation=lambda _: child.kill(),
            kill_context=lambda: _kill_contexts(child),
        )
    await hear(child, b"L")
    channel = GuestChannel(child.channel, on_violation=lambda _: child.kill())
    if spec.purpose == "program":
        channel.most_held_bytes = MOST_HELD_BYTES
    return channel


def _kill_contexts(child: Child) -> None:
    """Kill init's children. A process that got one of their pids meanwhile is not killed."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for pid in posture.children(child.pid) if child.is_alive else ():
            pidfd = os.pidfd_open(pid)
            try:
                if pid in posture.children(child.pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


def _work_area(pid: int, shape: plan.Shape) -> str:
    """Return the path by which the host looks how full the work area is.

    SECURITY: the directories of an image may be links, which would be followed on the host.
    """
    return f"/proc/{pid}/root" if shape.image else f"/proc/{pid}/root/tmp"


def _only(contexts: Sequence[int]) -> int:
    if len(contexts) != 1:
        raise SandboxBroken(f"sandbox set-up: init has {len(contexts)} children instead of one")
    return contexts[0]


def _ids(entry: Entry, index: int) -> tuple[int, int]:
    """Return user and group id on the host for an index of the fork-server's range."""
    return entry.uids.host_uid(index), entry.uids.host_gid(index)


class Confinement:
    """Compares the posture of sandboxes with the plan; recognises one that it has verified."""

    def __init__(self, facts: plan.HostFacts, image_ids: id_maps.Lines) -> None:
        """Make plans from `facts`. A sandbox must share no namespace with this process."""
        self._facts, self._image_ids = facts, image_ids
        self._namespaces: Mapping[str, str] = posture.host_namespaces()
        self._verifier = posture.Verifier()
        self._decisions: dict[plan.Shape, tuple[Lockdown, str]] = {}

    async def confine(self, entry: Entry, spec: SandboxSpec, cloned: ClonedChild) -> Confined:
        """Verify that a cloned child is confined, and set its limits.

        Wait for "L", compare init, wait for `ready` unless a caller waits, compare the contexts,
        set the limits.

        SECURITY: until this returns, no caller can send the guest anything. Raises
        `PostureMismatch`, `OSError`, `ChannelLost`, `HostUnsupported`; the caller must then discard
        the child.
        """
        child, groups, shape = cloned.child, cloned.groups, cloned.shape
        channel = await _heard(child, spec)
        work_fd = -1
        try:
            lockdown, digest = self._decided(shape)
            want = self._expectation(entry, cloned, lockdown, shape)
            namespaces = self._verifier.verify(child.pid, want)
            self._verifier.verify_mounts(child.pid, want)
            work_fd = os.open(_work_area(child.pid, shape), os.O_PATH | os.O_CLOEXEC)
            contexts = posture.descendants(child.pid)
            if isinstance(channel, AloneChannel):
                channel.context_pid = _only(contexts)
            if _is_whole(spec, contexts):
                channel.expect_ready(_READY_TIMEOUT_S)
            else:
                await channel.wait_ready(_READY_TIMEOUT_S)
                contexts = posture.descendants(child.pid)
            for pid in contexts:
                self._verifier.verify_beside(pid, want, namespaces)
            entry.server.check_alive()  # otherwise it would die with the caller's code in it
            # SECURITY: no process of the engine is in the sandbox's cgroups when caller code comes.
            if not cloned.has_left:
                # Shielded: if it were cancelled half way, the worker would clone into the same
                # cgroups again.
                await asyncio.shield(cloned.leaving)
            groups.begin()
            groups.apply(spec.limits)
        except BaseException:
            channel.close()
            if work_fd >= 0:
                os.close(work_fd)
            raise
        return Confined(channel, tuple(contexts), work_fd, digest)

    def compare_again(self, kept: KeptSandbox, groups: sandbox_groups.Groups, now: Shapes) -> None:
        """Compare a kept sandbox, in which caller code has run, with the plan of this version.

        SECURITY: init is compared in full, and its mounts. The processes that caller code has
        started may have lowered their own limits, and may end meanwhile; nothing else of them may
        differ. Raises Upgraded if this version would confine it otherwise, `PostureMismatch`,
        `OSError`.
        """
        from cellwall.runtimes.jail.keeping.record import Upgraded  # most sandboxes are not kept

        _, digest = self._decided(now.made)
        if digest != kept.posture:
            raise Upgraded(
                f"kept sandbox: its posture is {kept.posture[:12]}, this version's is {digest[:12]}"
            )
        want = posture.expected(
            self._decided(now.limited)[0],
            posture.HostIds(kept.ids.user, kept.ids.root),
            groups.expected_lines(),
            self._namespaces,
            kept.namespaces,
        )
        links = self._verifier.verify(kept.pid, want)
        self._verifier.verify_mounts(kept.pid, want)
        loose = replace(want, limits={})
        for pid in posture.descendants(kept.pid):
            try:
                self._verifier.verify_beside(pid, loose, links)
            except OSError:
                if posture.read_stat(pid)[:1] not in ([], ["Z"], ["X"]):
                    raise

    def _expectation(
        self, entry: Entry, cloned: ClonedChild, lockdown: Lockdown, shape: plan.Shape
    ) -> posture.Expectation:
        want = posture.expected(
            lockdown,
            posture.HostIds(
                _ids(entry, cloned.uid_index),
                _ids(entry, entry.uids.root_index) if entry.uids.root_index else None,
                self._image_ids,
            ),
            cloned.groups.expected_lines(),
            self._namespaces,
            entry.namespaces,
        )
        if shape.shows_changes:
            want = replace(want, points=image_plan.points(shape))
        return replace(want, volumes=dict(shape.volumes)) if shape.volumes else want

    def _decided(self, shape: plan.Shape) -> tuple[Lockdown, str]:
        """Compute the lockdown that a shape must show, and the posture's digest, once."""
        if shape not in self._decisions:
            made = image_plan.sandbox_plan if shape.image else plan.sandbox_plan
            what = made(self._facts, shape)
            digest = posture.digest(what.lockdown, plan.digest(what.steps))
            self._decisions[shape] = (what.lockdown, digest)
            while len(self._decisions) > _SHAPES_KEPT:
                del self._decisions[next(iter(self._decisions))]
        return self._decisions[shape]
