"""Starting the processes of one fork-server: what they are told, and the sockets they are given.

Not what is said through them (`fork_server`). The invariant: who cannot be started leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cellwall.jail.plan import plan
from cellwall.jail.protocol import fds

_ARENAS, _BARE_ARENAS = 48, 16
"""Of CPython's heap (1 MiB each), mapped ahead for a template with packages and for one without;
more than `data` and `python` fill. Those left over are given back."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How one fork-server is started."""

    guest_path: Path
    template_path: Path
    base_mounts: tuple[str, ...]
    python: str
    """Path of the template's interpreter inside the root."""
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    """What sandboxes have unless their spec says otherwise."""
    preload_environment: Mapping[str, str]
    """What is different while packages are imported."""
    uid_base: int
    """The first id for the fork-server's namespace, as `boot` sees it."""
    uid_count: int
    rootless: bool
    outer: Mapping[str, Any] | None
    """What `boot` maps into a namespace of its own first (`id_maps`); None: our own id only."""
    is_mover_kept: bool
    """A worker has to be one that we may put into cgroups of version 1 (`forkserver`)."""
    workers: Mapping[str, int]
    """How many processes clone sandboxes, by purpose: `program` and `session`, in this order."""
    seccomp: bytes
    guest_main: str
    guest_preload: str
    guest_reseed: str
    guest_alone: str


class Launched(NamedTuple):
    """Processes that begin to import, and our ends of their sockets, which do not block."""

    boot: subprocess.Popen[bytes]
    control: socket.socket
    workers: list[socket.socket]
    """One for each process that will clone sandboxes, in the order of their forks."""


def launch(settings: Settings, facts: plan.HostFacts) -> Launched:
    """Start boot with its ends of our sockets; raises OSError."""
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

        def pair() -> tuple[socket.socket, int]:
            kept, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(kept.close)
            theirs.callback(given.close)
            kept.setblocking(False)
            return kept, given.fileno()

        control, control_fd = pair()
        pairs = [pair() for _ in range(sum(settings.workers.values()))]
        lifeline = os.pidfd_open(os.getpid())
        theirs.callback(os.close, lifeline)
        config = fds.as_document(json.dumps(_config(settings, facts)))
        theirs.callback(os.close, config)
        given = [control_fd, config, lifeline, *(number for _, number in pairs)]
        made = Launched(_boot(settings, given), control, [kept for kept, _ in pairs])
        ours.pop_all()
        return made


def _boot(settings: Settings, inherited: list[int]) -> subprocess.Popen[bytes]:
    control, config, *kept = (str(fd) for fd in inherited)
    interpreter = [sys.executable, "-I", "-S", "-E", str(settings.guest_path)]
    return subprocess.Popen(
        [*interpreter, "boot", control, config, *kept],
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
        "python": settings.python,
        "uid_base": settings.uid_base,
        "uid_count": settings.uid_count,
        "environment": {**settings.environment, **settings.preload_environment},
        "arenas": _ARENAS if settings.preload else _BARE_ARENAS,
        "forkserver": {
            "facts": facts,
            "preload": list(settings.preload),
            "environment": dict(settings.environment),
            "preload_environment": dict(settings.preload_environment),
            "mover": settings.uid_count if settings.is_mover_kept else 0,
            "root_id": max(0, settings.uid_count - 1),
            "program_workers": settings.workers["program"],
            "seccomp": settings.seccomp.hex(),
            "guest_main": settings.guest_main,
            "guest_preload": settings.guest_preload,
            "guest_reseed": settings.guest_reseed,
            "guest_alone": settings.guest_alone,
            "python": settings.python,
        },
    }
