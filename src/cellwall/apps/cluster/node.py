"""`cellwall node`: a server for gateways alone, and above it a guard that ends it without them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.apps.serve import Role, run
from cellwall.cluster.certificates import node_context
from cellwall.cluster.node.drain import Drain
from cellwall.cluster.node.face import GatewayKeys, NodeFace
from cellwall.cluster.node.grants import NodeGrants
from cellwall.cluster.node.guard import Heart, guard
from cellwall.cluster.node.offers import Offers
from cellwall.cluster.node.probe import Probe
from cellwall.linux.syscalls.libc import do_all
from cellwall.linux.syscalls.process import prepare_parent_death_signal
from cellwall.model.errors import UsageError
from cellwall.model.ids import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cellwall.apps.cluster.settings import NodeSettings
    from cellwall.apps.serve import Said
    from cellwall.apps.settings_loader import Loaded
    from cellwall.server.core.door_settings import DoorSettings
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.http.face import Face
    from cellwall.server.state import State

_EVERYWHERE = ("0.0.0.0/0", "::/0")


def guarded(
    settings: NodeSettings, serve: Callable[[int], None], forget: Callable[[], object]
) -> int:
    """Run `serve` in a process below a guard; return its exit status.

    `serve` gets the descriptor for its beats. `forget`: uses up the node's name.
    """

    guard_pid = os.getpid()

    def start(beats: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            # A server without its guard would go on when no gateway hears it.
            do_all((prepare_parent_death_signal(signal.SIGKILL),))
            if os.getppid() != guard_pid:
                os._exit(status)
            serve(beats)
            status = 0
        finally:
            os._exit(status)

    return guard(start, settings.fence_s, forget)


def named(loaded: Loaded) -> Loaded:
    """Return the settings of a node: it has a name, and no sandbox of it outlives its server.

    Raises UsageError.
    """
    if loaded.server.keep_sessions:
        raise UsageError(
            "node: keep_sessions would keep sandboxes of a node that is lost", remedy="leave it out"
        )
    if loaded.server.node not in {"", AUTO}:
        raise UsageError(
            "node: a node that was fenced takes another name, so it draws its names itself",
            remedy="leave [server] node out",
        )
    if loaded.server.unix is None and loaded.server.port == 0:
        raise UsageError(
            "node: port = 0: gateways would not find it again after its server was ended",
            remedy="give [server] a port of its own",
        )
    return replace(loaded, server=replace(loaded.server, node=AUTO))


def serve_as_node(settings: NodeSettings, loaded: Loaded, said: Said, beats: int) -> None:
    """Serve gateways until a signal ends the server."""
    heart = Heart(beats, settings.fence_s)
    drain, offers, keys = Drain(settings.drain_s, settings.fence_s), Offers(), GatewayKeys()
    grants = NodeGrants()
    probe = Probe(heart, drain, grants)

    def face(state: State) -> Face:
        has_doors = bool(loaded.server.doors)
        offers.lent.open(state)
        grants.open(state, probe.generation)
        return NodeFace(state.tokens, state.queue.tenants, heart, offers, keys, has_doors=has_doors)

    context = node_context(Path(settings.authority), settings.files)
    endpoints = (*probe.endpoints, *offers.endpoints, *drain.endpoints, *offers.lent.endpoints)
    endpoints += grants.endpoints
    role = Role(context, face, lambda _state: endpoints, drain, probe.hold)
    # All clients come from the addresses of gateways, which count theirs.
    server = replace(loaded.server, proxies=_EVERYWHERE, doors=_behind(loaded.server))
    run(replace(loaded, server=server), keys, said, role)


def _behind(server: ServerSettings) -> Mapping[str, DoorSettings]:
    """Return a node's doors: ports of their own, and callers without a key, are the gateway's."""
    return {name: replace(each, port=None, tenant=None) for name, each in server.doors.items()}
