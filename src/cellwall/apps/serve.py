"""Serve: the server process, which alone wires settings, keys, engine, application and socket.

It contains neither the application (`server.app`) nor the flags (`cli.serve`). The invariant:
however it ends, the engine is closed, so no sandbox outlives the server; it listens only after the
checks of `exposure`, and it serves only after every id of an earlier server has its true
state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
import uvloop

from cellwall.apps.exposure import check_exposure, check_tls
from cellwall.apps.first_key import adopt_file, first_key, has_own_keys
from cellwall.apps.heap import keep_big_blocks_apart, spare_the_collector
from cellwall.apps.instruments import connect, facts_of
from cellwall.apps.listeners import (
    address_of,
    listening_for_doors,
    listening_on,
    raise_descriptor_limit,
    tcp_address_of,
)
from cellwall.apps.mcp.transport.mount import Mount
from cellwall.apps.metrics_listener import check_metrics_exposure, listening
from cellwall.apps.node_name import name_of
from cellwall.apps.state_lock import locked
from cellwall.apps.store_place import open_store, store_disk, store_url
from cellwall.engine.engine import Engine
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.jail.inspect.probe import layout_choice_problem
from cellwall.linux import uid_ranges
from cellwall.linux.cgroups.delegation import step_aside
from cellwall.server.app import create_app
from cellwall.server.auth.keys import KeyRing
from cellwall.server.http.addresses import Addresses
from cellwall.server.http.uvicorn_protocol import Connection, SocketConnection
from cellwall.server.state import State

if TYPE_CHECKING:
    from types import FrameType

    from cellwall.apps.doors.gate import Gate
    from cellwall.apps.settings_loader import Loaded
    from cellwall.cluster.node.drain import Drain
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.server.core.request import Message, Receive, Send
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.http.endpoint import Endpoint
    from cellwall.server.http.face import Face
    from cellwall.server.observability.logs import Log
    from cellwall.store.store import Store

    Application = Callable[[Message, Receive, Send], Awaitable[None]]

_MESSAGE_BYTES = 1024 * 1024
_BACKLOG = 2048
_SWITCH_S = 0.002
"""Switch interval in seconds. The store's threads mostly wait for the disk; a busy loop would make
them wait longer for the interpreter (5 ms by default) between two steps of a write. With 0.5 ms
they interrupt the loop so often that 32 clients get 1 to 2 % less done."""


class _Server(uvicorn.Server):
    """uvicorn with a callback when it listens, and an orderly end of running work."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: State,
        on_ready: Callable[[], None],
        closing: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._state = state
        self._on_ready = on_ready
        self._closing = closing
        self._drain: Drain | None = None
        self._signals = 0

    def drains_first(self, drain: Drain) -> None:
        """Have `drain` say when the server stops."""
        self._drain = drain
        drain.open(self._state, self._stop)

    def _stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # It listens until then: a new client is told that the server stops, and may still read.
        began = time.monotonic()
        stop_s = self._state.settings.stop_s
        await self._state.drain(stop_s, lambda: self.force_exit)
        await self._closing()
        # Streams end with their executions; otherwise they would hold the server until `stop_s`.
        await self._state.aclose()
        left_s = max(1, int(stop_s - (time.monotonic() - began)))
        self.config.timeout_graceful_shutdown = left_s
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Like uvicorn, but without raising the signal again: a requested stop is no failure.
        self._signals += 1
        if self._signals > 1:
            self.force_exit = True
        if self._drain is None or self._drain.may_stop(sig):
            self.should_exit = True


class _Config(uvicorn.Config):
    """uvicorn's configuration with a TLS context of ours."""

    context: ssl.SSLContext | None = None

    def load(self) -> None:
        super().load()
        if self.context is not None:
            self.ssl = self.context


def config_of(
    settings: ServerSettings, app: Application, context: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """Return uvicorn's configuration; `context` replaces the certificate of the settings."""
    Connection.header_s = settings.header_s
    Connection.most = settings.most_connections
    Connection.addresses = Addresses(settings.most_connections_per_address, settings.proxy_networks)
    config = _Config(
        app,
        loop="none",
        http=Connection,
        ws=SocketConnection,
        ws_max_size=_MESSAGE_BYTES,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=settings.most_connections,
        backlog=_BACKLOG,
        timeout_keep_alive=int(settings.keep_alive_s),
        timeout_graceful_shutdown=int(settings.stop_s),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    config.context = context
    return config


class Role(NamedTuple):
    """What a server is besides, which decides who may call it: a node of a cluster."""

    context: ssl.SSLContext
    """TLS of its listener, which lets in whom it serves."""
    face: Callable[[State], Face]
    endpoints: Callable[[State], tuple[Endpoint, ...]]
    drain: Drain
    """What comes before its end."""
    before: Callable[[State], None]
    """Called before the state takes up what an earlier server left."""


async def _store(url: str | None, *, has_journal: bool) -> Store | None:
    if url is None:
        return None
    return await open_store(url, sole=True, has_journal=has_journal)


@contextlib.asynccontextmanager
async def opened(
    loaded: Loaded, keys: KeyRing, directory: Path, log: Log | None = None
) -> AsyncIterator[State]:
    """Open a store, an engine and the state over both; all are closed at the end."""
    url = store_url(loaded.server, directory)
    store = await _store(url, has_journal=loaded.server.journal)
    try:
        settings = _with_snapshots(loaded, directory)
        engine = Engine(
            directory,
            settings,
            keeps_sandboxes=loaded.server.keep_sessions,
            keeps_hibernated=store is not None,
        )
        redactor = None if log is None else log.redactor
        state = State(engine, loaded.server, keys, store, redactor, store_disk(url))
        connect(state, log)
        try:
            yield state
        finally:
            await state.aclose()
            await engine.aclose()
            await asyncio.to_thread(state.observer.close)
            if state.audit is not None:
                await state.audit.aclose()
    finally:
        if store is not None:
            await store.aclose()


def _with_snapshots(loaded: Loaded, directory: Path) -> EngineSettings:
    """Return the engine's settings, with a place for snapshots if anything outlives the server.

    An ordinary user with ids of its own for sandboxes may not read what a stored session is
    compared by, and a unit with LockPersonality may not choose how memory is laid out: there
    nothing is stored unless the operator asks, and then that is refused. `doctor` says so.
    """
    settings = loaded.engine
    if settings.snapshots_dir or loaded.server.store == "none":
        return settings
    if os.geteuid() != 0 and not uid_ranges.find().are_shared:
        return settings
    if layout_choice_problem():
        return settings
    return replace(settings, snapshots_dir=str(directory.absolute() / "snapshots"))


def _with_node(loaded: Loaded, folder: Path) -> Loaded:
    """Return the settings with the server's name among several, if it has one."""
    node = name_of(loaded.server.node, folder)
    return replace(loaded, engine=replace(loaded.engine, node=node)) if node else loaded


async def _sweep(state: State) -> None:
    """Remove leftovers of killed servers; the owner label protects running ones."""
    report = await state.engine.sweep()
    state.observer.swept(report)


async def _warm(state: State) -> None:
    """Start fork-servers, park sandboxes of the built templates, make ready for volumes."""
    store = TemplateStore(state.engine.state_dir)
    for name in state.settings.warm:
        if await asyncio.to_thread(store.find, name) is not None:
            await state.engine.run("0", template=name)
    if state.settings.volumes_mb:
        await state.engine.prepare_volumes()
    await state.engine.pool.wait_full()


@dataclass(frozen=True, slots=True)
class Said:
    """Callbacks and options of the caller that starts the server."""

    on_ready: Callable[[str], None]
    """Callback that gets the address, once the server listens."""
    on_door: Callable[[str, str], None] = lambda _name, _address: None
    """Callback that gets the name and the address of each door with a port of its own."""
    on_key: Callable[[str | None], None] = lambda _key: None
    """Callback that gets the first key if it was made now; None if it was made before."""
    is_key_new: bool = False
    """Whether to make the first key afresh; the old one becomes void."""
    log: Log | None = None
    """Log of the server; None: no log."""


async def serve(
    loaded: Loaded,
    keys: KeyRing,
    said: Said,
    directory: Path | None = None,
    role: Role | None = None,
) -> None:
    """Serve until a signal ends the server."""
    raise_descriptor_limit()
    settings = loaded.server
    check_metrics_exposure(settings)
    check_tls(settings)
    if settings.doors:
        from cellwall.apps.doors.gate import check_doors

        check_doors(settings)
    folder = directory or state_dir()
    with locked(folder):
        loaded = _with_node(loaded, folder)
        async with (
            opened(loaded, keys, folder, said.log) as state,
            listening(settings, state.observer.metrics, state.tasks),
        ):
            if state.audit is not None:
                await state.audit.open(facts_of(loaded))
            if role is None:
                await _unlock(state, folder, said)
            with listening_on(settings) as sock, listening_for_doors(settings) as door_socks:
                state.tasks.spawn(_sweep(state))
                # Before the turns of waiting items: `_warm` waits for the pool to be full.
                await _warm(state)
                if role is not None:
                    role.before(state)
                await state.open()
                surfaces = _Surfaces(state, door_socks, role)

                def on_ready() -> None:
                    said.on_ready(address_of(settings, sock))
                    for name, each in door_socks.items():
                        said.on_door(name, tcp_address_of(settings, each))

                config = config_of(settings, surfaces.app, None if role is None else role.context)
                server = _Server(config, state, on_ready, surfaces.aclose)
                if role is not None:
                    server.drains_first(role.drain)
                spare_the_collector()
                await server.serve(sockets=[sock, *door_socks.values()])


class _Surfaces:
    """Our own protocol, MCP, and the doors that the operator opens, as one application."""

    def __init__(
        self, state: State, door_socks: Mapping[str, socket.socket], role: Role | None
    ) -> None:
        self._mount = Mount(state)
        more, face = self._mount.endpoints, None
        if role is not None:
            more, face = (*more, *role.endpoints(state)), role.face(state)
        own = self._mount.app = create_app(state, more, face)
        self._gate: Gate | None = None
        self.app: Application = own
        if state.settings.doors:
            from cellwall.apps.doors.gate import Gate  # brings the SDK

            self.app = self._gate = Gate(state, own, face)
            for name, sock in door_socks.items():
                self._gate.listens(name, sock.getsockname()[1])

    async def aclose(self) -> None:
        """End what clients of other protocols have; idempotent."""
        await self._mount.aclose()
        if self._gate is not None:
            await self._gate.aclose()


async def _unlock(state: State, directory: Path, said: Said) -> None:
    """Make sure that there is a key, and that it fits the server's address."""
    is_configured = bool(state.keys.fixed)
    has_own = is_configured or await has_own_keys(state.store)
    check_exposure(state.settings, has_own_keys=has_own)
    if is_configured:
        return
    if state.store is not None:
        await adopt_file(state.store, directory)
    said.on_key(await first_key(state.store, state.keys, afresh=said.is_key_new))


def run(loaded: Loaded, keys: KeyRing, said: Said, role: Role | None = None) -> None:
    """Serve on an event loop of its own."""
    keep_big_blocks_apart()
    step_aside()
    sys.setswitchinterval(_SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(loaded, keys, said, role=role))
