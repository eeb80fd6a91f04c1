"""A clone request to a worker, and what the worker remembers of earlier requests.

Has both halves: the host writes a request (`fork_server`), a worker reads it (`forkserver`). How it
is carried is in `fds`, how it is carried out in `forkserver`. The invariant: what is remembered is
bounded, because callers choose limits freely, a plan is 100 KiB, and each clone copies the worker's
page tables.

SECURITY: a request holds no byte of a caller's. Everything that a worker ever had in memory, live
or freed, is in the memory of every later sandbox. Environments go another way (`environment`).
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from cellwall.jail.fast import single_program as alone
from cellwall.jail.plan import executor, image_plan, lockdown, plan
from cellwall.jail.processes import sandbox_init
from cellwall.linux.syscalls.libc import Prepared

ALONE = "alone"
"""Value of `start` for a sandbox of one program."""
MOVE = b"move"
"""Message: move into the first sandbox's cgroups; do not clone."""
_REMEMBERED = 32
"""Most requests, and most plans, that a worker remembers. The oldest is dropped first, so that a
hit writes to no page."""


def encoded(
    shape: plan.Shape,
    uid: int,
    guest: Mapping[str, Any],
    start: str,
    *,
    is_told: bool = False,
    program: bytes = b"",
) -> bytes:
    """Encode a request for one sandbox; all but the uid repeats from request to request.

    `is_told`: its environment is not the usual one, and lies in its channel. `program`: its seccomp
    filter, if that is not the usual one.
    """
    rest = json.dumps(
        {"guest": dict(guest), "start": start, "is_told": is_told, "program": program.hex()}
    )
    return f'{uid} {{"shape": {_shape_text(shape)}, {rest[1:]}'.encode()


@lru_cache(maxsize=256)
def _shape_text(shape: plan.Shape) -> str:
    return json.dumps(shape._asdict())


class Ready(NamedTuple):
    """A sandbox plan, prepared so that a fork has little left to build."""

    runs: Tuple[Prepared, ...]
    lockdown: lockdown.Ready

    def alone(self) -> alone.Ready:
        """Prepare the same calls in the same order for a sandbox of one program."""
        lock = self.lockdown
        own = sandbox_init.OWN_CGROUP_NAMESPACE
        return alone.prepare(
            (*lock.become_user, *self.runs, *own, *lock.privileges, *lock.files, *lock.filter),
            lock.descriptors,
        )


class CloneRequest:
    """One sandbox to clone.

    A class with slots and not a named tuple: reading a named tuple's field by its name writes to
    memory, and so copies a page.
    """

    __slots__ = (
        "alone",
        "guest",
        "has_image",
        "has_standby",
        "is_told",
        "mounts",
        "ready",
        "start",
    )

    def __init__(
        self,
        ready: Ready,
        lists: Optional[alone.Ready],
        guest: Dict[str, Any],
        start: str,
        is_told: bool,
        shape: plan.Shape,
    ) -> None:
        """`start`: `fork`, `exec` for a really fresh interpreter, or `alone`, which needs `lists`.

        `is_told`: the sandbox's environment lies in its channel. `shape` says which mounts come
        with the request: of an image's root, and of volumes. After them comes a standby line, if
        the guest is told that it `has_standby`.
        """
        self.ready = ready
        self.alone = lists
        self.guest = guest
        self.start = start
        self.is_told = is_told
        self.has_image = bool(shape.image)
        self.mounts = self.has_image + len(shape.volumes)
        self.has_standby = bool(guest.get("has_standby"))


class CloneRequests:
    """The requests that one worker remembers."""

    def __init__(self, facts: plan.HostFacts, program: bytes, last_capability: int) -> None:
        """Make plans from these facts, with `program` as the seccomp filter."""
        self._facts = facts
        self._program = program
        self._last_capability = last_capability
        self._known: Dict[bytes, CloneRequest] = {}
        self._plans: Dict[plan.Shape, Ready] = {}
        self._alone: Dict[plan.Shape, alone.Ready] = {}

    def read(self, data: bytes) -> Tuple[int, CloneRequest]:
        """Return the uid, and the rest, of a request that `encoded` made.

        Other data raises ValueError, TypeError or KeyError.
        """
        uid, _, text = data.partition(b" ")
        request = self._known.get(text)
        if request is None:
            request = self._decode(json.loads(text))
            _forget(self._known)
            self._known[text] = request
        return int(uid), request

    def _decode(self, said: Dict[str, Any]) -> CloneRequest:
        shape, start = plan.Shape.from_json(said["shape"]), said["start"]
        ready = self._plan(shape, said["program"])
        lists = self._lists(shape, ready) if start == ALONE else None
        return CloneRequest(ready, lists, said["guest"], start, said["is_told"], shape)

    def _plan(self, shape: plan.Shape, program: str) -> Ready:
        """Return the plan of a shape; shapes of one profile have one `program`."""
        if shape not in self._plans:
            _forget(self._plans)
            self._plans[shape] = self._prepare(shape, bytes.fromhex(program) or self._program)
        return self._plans[shape]

    def _lists(self, shape: plan.Shape, ready: Ready) -> alone.Ready:
        if shape not in self._alone:
            _forget(self._alone)
            self._alone[shape] = ready.alone()
        return self._alone[shape]

    def _prepare(self, shape: plan.Shape, program: bytes) -> Ready:
        made = image_plan.sandbox_plan if shape.image else plan.sandbox_plan
        decided = made(self._facts, shape)
        return Ready(
            executor.prepare(decided.steps, sandbox_init.FREE_FD),
            lockdown.prepare(
                decided.lockdown, program, self._last_capability, sandbox_init.FREE_FD
            ),
        )


def _forget(remembered: Dict[Any, Any]) -> None:
    """Make room for one more entry."""
    while len(remembered) >= _REMEMBERED:
        del remembered[next(iter(remembered))]
