"""Sandboxes that outlive this engine's process: what is put with the keeper, what is taken over.

Runs on asyncio in the engine process, used by `runtime` if its sandboxes are kept at all. The
keeper's protocol is in `keeping.client`, the record in `keeping.record`. The invariant: a kept
sandbox is handed out only after its posture was compared again and init has answered on its standby
line; any other one is killed, with a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.jail.inspect import posture
from cellwall.jail.plan import plan
from cellwall.jail.protocol import fds
from cellwall.linux.cgroups import sandbox_groups
from cellwall.linux.cgroups.engine_tree import found_freezer, groups_in
from cellwall.linux.cgroups.hierarchies import Layout
from cellwall.linux.cgroups.sandbox_groups import Groups
from cellwall.linux.uid_ranges import UidRange
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes.base import SandboxSpec
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.take_over import take_over
from cellwall.runtimes.jail.child import Child, pid_of
from cellwall.runtimes.jail.confinement import Confinement, Shapes
from cellwall.runtimes.jail.keeping.client import KeeperClient
from cellwall.runtimes.jail.keeping.record import (
    KeptGroups,
    KeptIds,
    KeptSandbox,
    Upgraded,
    spec_of,
)
from cellwall.runtimes.jail.sandbox import JailSandbox, SandboxResources
from cellwall.runtimes.jail.stored.kept_base import KeptBase
from cellwall.runtimes.keeping import NotTakenOver, TakenOver

if TYPE_CHECKING:
    from cellwall.runtimes.jail.sandbox import Owner

_ANSWER_S = 10.0
_AT_ONCE = 8
"""Most sandboxes that are taken over at the same time: while the init of one answers, another one's
posture is compared."""
_TIDY_S = 2.0
_UPGRADED = "upgraded: this version of the server does not take it over"
_PIDFD, _WORK = 0, 1
"""Places in the list of descriptors; what it hangs on follows, then the files of its base if it has
one, and the lines come last."""
_OF_BASE = 2


class Making(Protocol):
    """The part of a runtime that decides how sandboxes are made."""

    name: str
    level: IsolationLevel

    @property
    def layout(self) -> Layout:
        """The cgroup hierarchies."""

    @property
    def rootless(self) -> bool:
        """Whether every sandbox runs under the engine's own id."""

    @property
    def confinement(self) -> Confinement:
        """What compares postures."""

    def shape(self, spec: SandboxSpec) -> plan.Shape:
        """Return what is built in of a sandbox."""

    def filter(self, shape: plan.Shape) -> bytes:
        """Return the seccomp filter of a sandbox."""


@dataclass(slots=True)
class _Arrival:
    """What was taken of one sandbox, until it is a sandbox again; owns the descriptors."""

    name: str
    descriptors: list[int]
    record: KeptSandbox | None = None

    @property
    def pidfd(self) -> int:
        return self.descriptors[_PIDFD]

    @property
    def owners_id(self) -> str:
        """The id by which its owner knows it, which need not be the runtime's."""
        return self.name if self.record is None else str(self.record.owner.get("id") or self.name)

    @property
    def lines(self) -> list[int]:
        """The channel, then the standby lines in the order in which they were made."""
        assert self.record is not None  # noqa: S101  for the type checker only
        return self.descriptors[-self.record.lines :]

    @property
    def fixed(self) -> list[int]:
        """All but the lines."""
        assert self.record is not None  # noqa: S101  for the type checker only
        return self.descriptors[: -self.record.lines]

    def newest_line(self) -> int:
        """Return the standby line on which init waits.

        The server before may have ended while it took over: then there is one line more. Init has
        its end of that one, or it was closed with the server before it was sent.
        """
        for line in reversed(self.lines[1:]):
            poller = select.poll()
            poller.register(line, 0)
            if not poller.poll(0):  # POLLHUP is always reported
                return line
        raise SandboxBroken("take over: init has ended, or has no standby line")

    def kill(self) -> None:
        """Kill init."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def discard(self) -> None:
        """Kill init, and close everything."""
        self.kill()
        fds.close_all(self.descriptors)
        self.descriptors = []


class KeptSandboxes:
    """What one runtime has put with its keeper, and takes over from it."""

    def __init__(self, keeper: KeeperClient, making: Making) -> None:
        """`keeper` is this object's from now on."""
        self.keeper = keeper
        self._making = making
        self._old: set[Path] = set()
        """Directories of earlier engines' cgroups, in which kept sandboxes are."""
        self._bases: dict[str, KeptBase] = {}
        """Bases of what was taken over, by lineage."""

    def keeps(self, spec: SandboxSpec) -> bool:
        """Whether a sandbox of `spec` can be kept.

        One on an image or with a volume cannot: a server's end also ends what mounts those.
        """
        return spec.purpose == "session" and spec.image is None and not spec.volumes

    def check_keeper(self) -> None:
        """Raise HostUnsupported once the keeper has ended: nothing can be started any more."""
        if self.keeper.is_gone:
            raise HostUnsupported(
                "session keeper",
                "start a sandbox: the session keeper has ended, and every fork-server with it",
                remedy="restart the server",
            )

    # -- putting ---------------------------------------------------------------------------

    def put(
        self,
        spec: SandboxSpec,
        limits: Limits,
        resources: SandboxResources,
        owner: Mapping[str, Any],
        known: KeptSandbox | None,
    ) -> KeptSandbox:
        """Keep a sandbox, or replace the record `known` of it; return the record.

        Raises UsageError, SandboxBroken if it cannot be kept.
        """
        if known is not None:
            record = replace(known, owner=dict(owner), limits=asdict(limits))
            self.keeper.put(spec.sandbox_id, record.encoded())
            return record
        child, entry = resources.child, resources.entry
        if child.standby is None or entry is None:
            raise SandboxBroken(f"sandbox {spec.sandbox_id}: it has no standby line")
        record = KeptSandbox(
            pid=child.pid,
            posture=resources.isolation.posture_digest,
            policy=self._policy(spec),
            hardness=dict(resources.isolation.hardness),
            ids=_ids(entry.uids, resources.uid_index),
            namespaces=dict(entry.namespaces),
            groups=KeptGroups.of(resources.groups),
            spec=spec_of(spec),
            limits=asdict(limits),
            lines=2,
            owner=dict(owner),
        )
        return self.put_anew(spec.sandbox_id, record, resources)

    def put_anew(
        self, sandbox_id: str, record: KeptSandbox, resources: SandboxResources
    ) -> KeptSandbox:
        """Keep every descriptor of a sandbox as it is now, with its record, which is returned."""
        child, base = resources.child, resources.base
        assert child.standby is not None  # noqa: S101  for the type checker only
        said, why_not = (None, resources.no_base) if base is None else (base.said(), "")
        record = replace(record, base=said, no_base=why_not)
        files = (*resources.held, *(() if base is None else base.files))
        lines = (child.channel.fileno(), child.standby.fileno())
        descriptors = [child.pidfd, resources.work_fd, *child.hangs_on, *files, *lines]
        self.keeper.put(sandbox_id, record.encoded(), descriptors)
        return record

    def drop(self, sandbox_id: str) -> None:
        """Forget a sandbox that has ended."""
        self.keeper.drop(sandbox_id)
        self.tidy()

    def _policy(self, spec: SandboxSpec) -> str:
        return hashlib.sha256(self._making.filter(self._making.shape(spec))).hexdigest()

    # -- taking over -----------------------------------------------------------------------

    async def take_over_all(
        self, owner: Owner, on_made: Callable[[JailSandbox], None]
    ) -> list[TakenOver | NotTakenOver]:
        """Take over every sandbox that is kept; kill those that cannot be."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> TakenOver | NotTakenOver:
            async with places:
                return await self._taken(name, owner, on_made)

        async with asyncio.TaskGroup() as group:
            taking = [group.create_task(one(name)) for name in self.keeper.names()]
        asyncio.get_running_loop().call_later(_TIDY_S, self.tidy)
        return [each.result() for each in taking]

    async def _taken(
        self, name: str, owner: Owner, on_made: Callable[[JailSandbox], None]
    ) -> TakenOver | NotTakenOver:
        """Take one over, or kill it; say which."""
        taken = self.keeper.take(name)
        arrival = _Arrival(name, taken.descriptors)
        try:
            arrival.record = KeptSandbox.decoded(taken.record)
            return await self._take_over(arrival, owner, on_made)
        except (CellwallError, posture.PostureMismatch, OSError, FrameError) as error:
            arrival.discard()
            self.keeper.drop(name)
            reason = _UPGRADED if isinstance(error, Upgraded) else "its server ended"
            return NotTakenOver(arrival.owners_id, f"{reason}: {error}")
        except BaseException:
            fds.close_all(arrival.descriptors)
            raise
        finally:
            if arrival.record is not None:
                paths = arrival.record.groups.paths.values()
                self._old |= {Path(path).parent for path in paths}

    async def _take_over(
        self, arrival: _Arrival, owner: Owner, on_made: Callable[[JailSandbox], None]
    ) -> TakenOver:
        record = arrival.record
        assert record is not None  # noqa: S101  for the type checker only
        spec, limits = record.made_as(), Limits(**record.limits)
        groups = self._compared(arrival, record, spec, limits)
        was_paused = _thawed(groups)
        line = arrival.newest_line()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as held:
            held.enter_context(ours)
            held.enter_context(theirs)
            # First both: if this process ends now, init has its end of the new line, or not.
            lines = [*arrival.lines, ours.fileno()]
            put = record.with_lines(len(lines)).encoded()
            self.keeper.put(arrival.name, put, [*arrival.fixed, *lines])
            sock = socket.socket(fileno=os.dup(line))
            channel, found = await take_over(sock, theirs, lambda _: arrival.kill(), _ANSWER_S)
            try:
                record = record.with_lines(2)
                lines = [sock.fileno(), ours.fileno()]
                self.keeper.put(arrival.name, record.encoded(), [*arrival.fixed, *lines])
            except BaseException:
                channel.close()
                raise
            held.pop_all()
        lines, (pidfd, work, *hangs_on) = arrival.lines, arrival.fixed
        found.lost_bytes += _unread_bytes(each for each in lines if each != line)
        arrival.descriptors = []
        fds.close_all(lines)
        base = self._shared(_base_of(record, hangs_on))
        child = Child(record.pid, pidfd, sock, standby=ours, hangs_on=tuple(hangs_on))
        channel.on_violation(child.kill)
        resources = SandboxResources(
            child=child,
            channel=channel,
            groups=groups,
            uid_index=record.ids.index,
            pids=(record.pid,),
            isolation=self._isolation(record, spec),
            work_fd=work,
            entry=None,
            base=base,
            no_base=record.no_base,
        )
        sandbox = JailSandbox(owner, spec, resources)
        sandbox.go_on(record, limits)
        on_made(sandbox)
        return TakenOver(sandbox, replace(spec, limits=limits), record.owner, found, was_paused)

    def _shared(self, base: KeptBase | None) -> KeptBase | None:
        """Return a base as the sandboxes have it that were taken over before."""
        if base is None:
            return None
        self._bases = {name: each for name, each in self._bases.items() if each.users}
        known = self._bases.setdefault(base.lineage, base)
        if known is base or not known.is_one_with(base):
            return base
        base.close()
        return known.again()

    def _compared(
        self, arrival: _Arrival, record: KeptSandbox, spec: SandboxSpec, limits: Limits
    ) -> Groups:
        """Raise unless the sandbox lives, and is confined as this version confines.

        Returns its cgroups.
        """
        if self._policy(spec) != record.policy:
            raise Upgraded("kept sandbox: its system call filter is not this version's")
        if pid_of(arrival.pidfd) != record.pid:
            raise SandboxBroken("kept sandbox: it has ended")
        shapes = Shapes(self._making.shape(spec), self._making.shape(replace(spec, limits=limits)))
        layout = self._making.layout
        groups = record.groups.found(layout)
        places = sandbox_groups.places(posture.read_text(f"/proc/{record.pid}/cgroup"))
        groups.freezer = found_freezer(layout, groups, places)
        self._making.confinement.compare_again(record, groups, shapes)
        return groups

    def _isolation(self, record: KeptSandbox, spec: SandboxSpec) -> Isolation:
        ids = "shared" if self._making.rootless else "own"
        making = self._making
        return Isolation(
            making.name, making.level, record.posture, dict(record.hardness), ids, spec.profile
        )

    def tidy(self) -> None:
        """Remove the empty cgroups of earlier engines; those of kept sandboxes are not empty."""
        for engine in list(self._old):
            for path in [*groups_in(engine), engine]:
                with contextlib.suppress(OSError):
                    path.rmdir()
            if not engine.exists():
                self._old.discard(engine)

    def close(self) -> None:
        """Leave the keeper, and all that it keeps."""
        self.tidy()
        self.keeper.close()


def _base_of(record: KeptSandbox, descriptors: list[int]) -> KeptBase | None:
    """Take the descriptors of the base that is kept with a sandbox; None if there is none."""
    if record.base is None:
        return None
    base, maps = descriptors[-_OF_BASE:]
    del descriptors[-_OF_BASE:]
    return KeptBase(record.base["lineage"], record.base["fingerprint"], base, maps)


def _thawed(groups: Groups) -> bool:
    """Let a paused sandbox go on, so that init can answer; whether it was paused."""
    freezer = groups.freezer
    if freezer is None:
        return False
    was_paused = freezer.is_frozen()
    freezer.thaw()  # in any case: the server may have ended while its processes were being stopped
    return was_paused


def _unread_bytes(lines: Iterable[int]) -> int:
    """Return how much the servers before have not read of what init sent them."""
    answers = [fcntl.ioctl(line, termios.FIONREAD, bytes(4)) for line in lines]
    return sum(struct.unpack("i", answer)[0] for answer in answers)


def _ids(uids: UidRange, index: int) -> KeptIds:
    user = (uids.host_uid(index), uids.host_gid(index))
    root = uids.root_index
    return KeptIds(index, user, (uids.host_uid(root), uids.host_gid(root)) if root else None)
