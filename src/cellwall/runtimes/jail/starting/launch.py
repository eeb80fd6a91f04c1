"""Start the processes of one fork-server: their configuration and their sockets.

Runs in the engine process. The messages on those sockets are in `fork_server`, but for the first:
boot is started before it is known what it has to build, and waits to be told. The invariant: a
start that fails leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.jail.protocol import fds
from cellwall.linux.syscalls import id_maps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cellwall.jail.plan import plan

_ARENAS, _BARE_ARENAS = 48, 16
"""Number of arenas of CPython's heap (1 MiB each) that are mapped ahead, for a template with
packages and for one without. That is more than `data` and `python` fill; unused arenas are given
back."""
_END_S = 5.0
"""Most seconds for the end of boot."""
QUICK_WORKERS = {"program": 1}
"""Processes of a quick fork-server that clone sandboxes."""


class Settings(NamedTuple):
    """The configuration of one fork-server."""

    guest_path: Path
    template_path: Path
    base_mounts: tuple[str, ...]
    python: str
    """Path of the template's interpreter inside the root."""
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    """Environment of its sandboxes unless their spec has another."""
    preload_environment: Mapping[str, str]
    """Variables that differ while packages are imported."""
    uid_base: int
    """First id for the fork-server's namespace, as `boot` sees it."""
    uid_count: int
    root_index: int
    """Index of the id that owns the fork-server's root and that no process has; 0 if there is none.
    """
    rootless: bool
    outer: Mapping[str, Any] | None
    """The id maps that `boot` first writes for a namespace of its own (`id_maps`); None: only the
    engine's own id."""
    is_mover_kept: bool
    """Whether workers keep the engine's id as their saved id, so that the engine may put them into
    cgroups of version 1 (`forkserver`)."""
    workers: Mapping[str, int]
    """Number of processes that clone sandboxes, by purpose: `program` and `session`, in this order.
    """
    seccomp: bytes
    guest_main: str
    guest_preload: str
    guest_reseed: str
    guest_alone: str
    image_ids: id_maps.Lines = id_maps.WHOLE
    """Which ids of a sandbox on an image, from its first one on, are which of the image's."""
    interpreter: str = ""
    """Directory of the interpreter for images without one; empty for sandboxes on templates."""
    is_alike: bool = False
    """Whether its memory lies as that of each other fork-server of its template, for snapshots that
    outlive it."""
    is_fast: bool = True
    """Whether `jail.fast` is in use at all; see its `switch`."""
    is_rehearsed: bool = True
    """Whether it rehearses what its sandboxes will do; see there as well."""
    lifeline: int = -1
    """Pidfd of the process with which the fork-server ends; -1: this one."""
    is_quick: bool = False
    """Whether it only imports, and leaves out what pays with many sandboxes alone: rehearsals, the
    layout of its memory, workers for sessions."""
    needs_init: bool = True
    """Whether any of its sandboxes has an init of ours; none has that is of one program alone."""


class Launched(NamedTuple):
    """The started processes, and our non-blocking socket ends."""

    boot: subprocess.Popen[bytes]
    control: socket.socket
    workers: list[socket.socket]
    """One socket for each process that will clone sandboxes, in the order of their forks."""

    def end(self) -> None:
        """End the processes of a start that is not wanted, and close our ends.

        Boot ends by itself, and reaps its child before: if it was killed, its child would go on for
        a moment with ids that another may hold by then, and nothing of ours could reap it.
        """
        for sock in (self.control, *self.workers):
            sock.close()
        _kill_children(self.boot.pid)  # which may be importing, and see no closed socket
        try:
            self.boot.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.boot.kill()
            self.boot.wait()

    def abandon(self) -> None:
        """Close our ends in a forked child; the parent keeps its own."""
        for sock in (self.control, *self.workers):
            sock.close()


def _kill_children(pid: int) -> None:
    """Kill the children of a child of ours, which is not reaped before we wait for it."""
    from cellwall.jail.inspect import posture  # most starts are wanted

    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # they end meanwhile
        for child in posture.children(pid):
            held = os.pidfd_open(child)
            try:
                if child in posture.children(pid):  # else the number is another's by now
                    signal.pidfd_send_signal(held, signal.SIGKILL)
            finally:
                os.close(held)


def launch(settings: Settings, facts: plan.HostFacts) -> Launched:
    """Start boot and tell it what to build. Raises OSError, ControlClosed."""
    launched = begin(settings.guest_path, sum(settings.workers.values()), settings.lifeline)
    try:
        tell(launched, settings, facts)
    except BaseException:
        launched.end()
        raise
    return launched


def begin(guest_path: Path, workers: int, lifeline: int = -1) -> Launched:
    """Start boot with its ends of our sockets; it waits for `tell`. Raises OSError.

    `workers` is how many processes will clone sandboxes; `lifeline` as in `Settings`.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

        def pair() -> tuple[socket.socket, int]:
            kept, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(kept.close)
            theirs.callback(given.close)
            kept.setblocking(False)
            return kept, given.fileno()

        control, control_fd = pair()
        pairs = [pair() for _ in range(workers)]
        held = os.pidfd_open(os.getpid()) if lifeline < 0 else os.dup(lifeline)
        theirs.callback(os.close, held)
        given = [control_fd, held, *(number for _, number in pairs)]
        made = Launched(_boot(guest_path, given), control, [kept for kept, _ in pairs])
        ours.pop_all()
        return made


def tell(launched: Launched, settings: Settings, facts: plan.HostFacts) -> None:
    """Tell boot what to build. Raises OSError, and ControlClosed if it has ended."""
    config = fds.as_sent_document(json.dumps(_config(settings, facts)))
    try:
        fds.send_message(launched.control, {"event": "configuration"}, [config])
    finally:
        os.close(config)


def _boot(guest_path: Path, inherited: list[int]) -> subprocess.Popen[bytes]:
    interpreter = [sys.executable, "-I", "-S", "-E", str(guest_path)]
    return subprocess.Popen(
        [*interpreter, "boot", *(str(fd) for fd in inherited)],
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )


def _config(settings: Settings, host: plan.HostFacts) -> dict[str, Any]:
    facts = host.as_json()
    return {
        "facts": facts,
        "rootless": settings.rootless,
        "outer": settings.outer,
        "shares_id": settings.rootless and settings.outer is None,
        "template_path": str(settings.template_path),
        "base_mounts": list(settings.base_mounts),
        "guest_path": str(settings.guest_path),
        "interpreter": settings.interpreter,
        "python": settings.python,
        "uid_base": settings.uid_base,
        "uid_count": settings.uid_count,
        "root_index": settings.root_index,
        "environment": {**settings.environment, **settings.preload_environment},
        "is_alike": settings.is_alike,
        "arenas": _arenas(settings),
        "forkserver": {
            "facts": facts,
            "preload": list(settings.preload),
            "environment": dict(settings.environment),
            "preload_environment": dict(settings.preload_environment),
            "mover": settings.uid_count if settings.is_mover_kept else 0,
            "root_id": settings.root_index,
            "image_ids": settings.image_ids,
            "program_workers": settings.workers["program"],
            "seccomp": settings.seccomp.hex(),
            "guest_main": settings.guest_main,
            "guest_preload": settings.guest_preload,
            "guest_reseed": settings.guest_reseed,
            "guest_alone": settings.guest_alone,
            "is_quick": settings.is_quick,
            "needs_init": settings.needs_init,
            "is_fast": settings.is_fast,
            "is_rehearsed": settings.is_rehearsed,
            "is_alike": settings.is_alike,
            "python": settings.python,
        },
    }


def _arenas(settings: Settings) -> int:
    if settings.is_quick or not settings.is_fast:
        return 0
    return _ARENAS if settings.preload else _BARE_ARENAS
