"""What the operator decides about the server: where it listens, who may call, how much.

Values only; files, environment and flags are read by `apps.settings_loader`. A request can never
change any of this. Durations are seconds, sizes are named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from cellwall.engine.quotas import Quotas
from cellwall.model.errors import UsageError
from cellwall.model.limits import Limits

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def _most() -> Limits:
    """Return ceilings that suit this machine: half its memory, all its processors."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Limits(
        wall_s=3600.0,
        cpu_s=3600.0,
        cpus=float(os.cpu_count() or 1),
        memory_mb=max(512, min(16_384, pages * page // 2**21)),
        processes=1024,
        disk_mb=4096,
        inodes=1_000_000,
        file_mb=4096,
        output_kb=65_536,
        open_files=4096,
        idle_s=86_400.0,
        life_s=86_400.0,
    )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server."""

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback needs a key of the operator's, and TLS or a word."""
    port: int = 8080
    """TCP port; 0 lets the kernel choose."""
    unix: str | None = None
    """Path of a unix socket (mode 0600) instead of TCP."""
    tls_cert: str | None = None
    """PEM file of the certificate chain; together with `tls_key`."""
    tls_key: str | None = None
    """PEM file of the private key."""
    allow_plain: bool = False
    """Keys may travel over plain TCP off this host: something in front speaks TLS."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names for the Host header, without port; `*` for any (only behind a proxy)."""
    allowed_origins: tuple[str, ...] = ()
    """Origins (`https://app.example`) of pages that may call; never answered with CORS headers."""
    store: str = "sqlite"
    """Where executions, sandboxes and idempotency keys are written down: `sqlite` (a file in the
    state directory), a URL (`postgresql+asyncpg://…`), or `none`: nothing outlives the server."""
    webhooks: bool = False
    """Callers may name a URL that is told of the end of an execution; only public addresses."""
    webhook_networks: tuple[str, ...] = ()
    """Networks (`10.1.0.0/16`) of the operator's that webhooks may go to beside public ones."""
    warm: tuple[str, ...] = ("python",)
    """Templates that are made ready before the server says that it listens, if they are built."""
    most: Limits = field(default_factory=_most)
    """Ceilings of what a request may ask for; above them it gets these and is told so."""
    most_sandboxes: int = 2000
    """Live sandboxes at once, of all owners; they hold descriptors and memory."""
    most_running: int = 64
    """One-shots that hold a sandbox at once; more only compete for the processors."""
    most_queued: int = 20_000
    """One-shots of all tenants that wait for one of those places; above it callers get 503."""
    capacity_memory_mb: int = 0
    """MiB of memory that may be promised; 0: nine tenths of the machine's, or of our cgroup's."""
    capacity_processes: int = 0
    """Processes that may be promised; 0: nine tenths of what the kernel has left at the start."""
    capacity_disk_mb: int = 0
    """MiB of work areas on a disk that may be promised, where a runtime has them there (`process`;
    the jail's are memory); 0: what is free at the start, less 1 GiB."""
    overcommit_memory: float = 32.0
    """A sandbox sets aside this fraction of its memory limit, at least 16 MiB: most only wait.
    One-shots always set aside all. 1: the sum of all limits never exceeds the machine."""
    overcommit_processes: float = 16.0
    """The same for its limit of processes, at least 4."""
    overcommit_disk: float = 1.0
    """The same for its work area, where that lies on a disk."""
    tiers: Mapping[str, Quotas] = field(default_factory=dict)
    """Quotas by the name of their tier; `default` is for tenants without one."""
    tenants: Mapping[str, str] = field(default_factory=dict)
    """The tier of each tenant that is not `default`."""
    least_free_mb: int = 256
    """MiB of memory the host must have available before anything new is accepted; 0: not asked."""
    most_connections: int = 4096
    """Open connections of all clients."""
    most_connections_per_address: int = 1024
    """Open TCP connections from one address."""
    spool_bytes: int = 1024 * 1024
    """Events kept per execution for readers that come (back) later."""
    stream_output_kb: int = 16_384
    """KiB kept per stream where the answer is streamed and no limit was named."""
    retention_s: float = 600.0
    """How long an ended execution, command or sandbox can be asked about."""
    retained_executions: int = 500
    """Ended executions kept in memory at most; the others are read from the store, if there is one,
    and forgotten if there is none."""
    retained_bytes: int = 64 * 1024 * 1024
    """Bytes of their answers and events kept in memory at most."""
    body_bytes: int = 64 * 1024 * 1024
    """Largest JSON body; routes that need less have less."""
    upload_bytes: int = 1024 * 1024 * 1024
    """Largest upload."""
    download_bytes: int = 4 * 1024 * 1024 * 1024
    """Largest download: what a sparse file claims to be costs us time, not memory."""
    header_s: float = 10.0
    """From a connection's first byte of a request to the end of its headers."""
    keep_alive_s: float = 75.0
    """An idle connection between two requests; longer than usual proxies keep theirs."""
    body_s: float = 30.0
    """Longest pause between two pieces of a body."""
    stall_s: float = 60.0
    """A reader that takes nothing for this long is hung up on."""
    socket_s: float = 86_400.0
    """Whole life of a WebSocket."""
    stop_s: float = 10.0
    """From the wish to stop to the end of what runs and of whoever is still connected; what has not
    ended by then is interrupted."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a number that is none or below zero."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type in {"int", "float"} and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0
            ):
                raise UsageError(
                    f"settings: {each.name} = {value!r} is not a number from 0",
                    remedy="see docs/server.md",
                )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.unix is not None or self.host in LOOPBACK

    @property
    def is_tls(self) -> bool:
        """Whether it speaks TLS itself."""
        return self.tls_cert is not None
