"""What the operator decides about the server: where it listens, who may call, how much.

Values only; files, environment and flags are read by `apps.settings_loader`. A request can never
change any of this. Durations are seconds, sizes are named.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from cellwall.engine.scheduling.quotas import Quotas
from cellwall.model.errors import UsageError
from cellwall.model.ids import AUTO, check_node
from cellwall.model.limits import Limits
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.passed_headers import is_never_passed

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

_LAST_PORT = 65_535
_HEADER = re.compile(r"[a-z0-9_-]{1,64}")
_WORDS = {"log_format": ("auto", "json", "console"), "audit": ("required", "flag")}
"""Settings that are one of a few words."""


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


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(
            f"settings: proxies has {text[:60]!r}: {error}",
            remedy="give addresses or networks, as 127.0.0.1 or 10.1.0.0/16",
        ) from None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server."""

    node: str = ""
    """Name of this server among several, four of the letters a to z and the digits 2 to 7, with
    which ids and signed tokens begin; `auto`: one that is drawn once and kept in the state
    directory. Empty: a server alone, ids begin with no name."""
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
    """Further names for the Host header, without port: `box.example`, `*.box.example` for each name
    right below it, `*` for any (only behind a proxy)."""
    allowed_origins: tuple[str, ...] = ()
    """Origins (`https://app.example`) of pages that may call with a key and read the answers, as a
    browser asks for it (CORS); each in full, none by default, never `*`. Behind a gateway it is
    the gateway's list that counts."""
    port_headers: tuple[str, ...] = ()
    """Further headers (`x-tenant`) of applications that pass to and from servers inside, beside the
    list in design/0023; never those of a proxy in front, by which it says who the client is."""
    store: str = "sqlite"
    """Where executions, sandboxes and idempotency keys are written down: `sqlite` (a file in the
    state directory), a URL (`postgresql+asyncpg://…`), or `none`: nothing outlives the server."""
    keep_sessions: bool = False
    """Sandboxes of callers outlive the server: a process beside it keeps them for 60 s, and the
    next server of the same state directory takes them over. Jail only, without image and volumes;
    needs a store."""
    journal: bool = True
    """A store of `sqlite` has a journal in front, which makes an execution durable in less time;
    `false`: each write goes to the database alone. PostgreSQL never has one."""
    secrets_key_file: str = ""
    """Path of the file with the key of stored secrets, 64 hexadecimal digits, which the server's
    user alone may read; empty: `secrets.key` in the state directory, made at its first use. At
    gateways with a directory: one file for all of them; empty: no secrets are set there."""
    webhooks: bool = False
    """Callers may name a URL that is told of the end of an execution; only public addresses."""
    webhook_networks: tuple[str, ...] = ()
    """Networks (`10.1.0.0/16`) of the operator's that webhooks may go to beside public ones."""
    images: tuple[str, ...] = ()
    """Images that callers may name as the root of a sandbox: `python:*`,
    `registry.example:5000/team/*`, `docker://task`, the id `sha256:…` of one that is here, or `*`:
    all of the listed registries. Empty: none. Never a path of this machine."""
    most_pulls: int = 2
    """Images that are pulled at once; further ones wait."""
    image_wait_s: float = 60.0
    """A request for an image that is not here waits so long for its pull; then it is told to come
    back."""
    volumes_mb: int = 0
    """MiB of volumes that a tenant may have, by their sizes together; 0: none."""
    templates_mb: int = 0
    """MiB of templates of its own that a tenant may have: the sizes of their whole trees together;
    0: callers build none. They build from images that they may name (`images`)."""
    most_builds: int = 2
    """Templates that are built at once, of all tenants."""
    build_s: float = 3600.0
    """Longest time of one build."""
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
    doors: Mapping[str, DoorSettings] = field(default_factory=dict)
    """Foreign protocols that are answered, too, each below its prefix `/NAME`."""
    least_free_mb: int = 256
    """MiB of memory the host must have available before anything new is accepted; 0: not asked."""
    least_free_disk_mb: int = 0
    """MiB that the disk of the store must have free before a program of more than 64 KiB may wait
    there, or one of a tenant that has much there is taken; 0: a tenth of it, at most 1 GiB."""
    most_connections: int = 4096
    """Open connections of all clients."""
    most_connections_per_address: int = 1024
    """Open TCP connections from one address."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks (`127.0.0.1`, `10.1.0.0/16`) of the operator's proxies in front: many
    callers come from there, so `most_connections_per_address` is not for them."""
    spool_bytes: int = 1024 * 1024
    """Events kept per execution for readers that come (back) later."""
    stream_output_kb: int = 16_384
    """KiB kept per stream where the answer is streamed and no limit was named."""
    tool_wait_s: float = 300.0
    """Longest time that a call from inside to a tool of the client's waits for its answer."""
    tool_absence_s: float = 10.0
    """The same while no connection of the client's is there to answer; it may come back."""
    retention_s: float = 600.0
    """How long an ended execution, command or sandbox can be asked about."""
    retained_executions: int = 500
    """Ended executions kept in memory at most; the others are read from the store, if there is one,
    and forgotten if there is none."""
    retained_bytes: int = 64 * 1024 * 1024
    """Bytes of their answers and events kept in memory at most; of ended commands as much again."""
    body_bytes: int = 64 * 1024 * 1024
    """Largest JSON body; routes that need less have less."""
    bodies_mb: int = 0
    """MiB of JSON bodies held at once, of all callers; a tenant may hold half. At least 64, and two
    of the largest body; 0: a sixteenth of the machine's memory, or of our cgroup's."""
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
    alive_s: float = 15.0
    """A stream that has nothing to send says that it lives so often; shorter than what proxies in
    front wait for a byte. 0: never."""
    stall_s: float = 60.0
    """A reader that takes nothing for this long is hung up on."""
    socket_s: float = 86_400.0
    """Whole life of a WebSocket."""
    detach_s: float = 3600.0
    """Most seconds that a terminal waits without a client, where one asks for that (`detach_s`);
    0: every terminal is hung up when its client leaves."""
    stop_s: float = 10.0
    """Seconds from the wish to stop until what still runs, and clients still connected, are
    interrupted."""
    log_format: str = "auto"
    """`json`, `console`, or `auto`: console on a terminal, JSON lines elsewhere."""
    metrics_port: int | None = None
    """Port of the metrics' own listener, 0 for any; None: no metrics are kept."""
    metrics_host: str = "127.0.0.1"
    """Its address. Anything but loopback needs `metrics_token_sha256`."""
    metrics_token_sha256: str | None = None
    """SHA-256, in hexadecimal, of the bearer token that scrapes must show; None: no token."""
    otel_endpoint: str | None = None
    """Where traces go, as OTLP over HTTP (`http://127.0.0.1:4318/v1/traces`); None: no traces."""
    flag_window_s: float = 60.0
    """Window of the rules that flag unusual runs; each flags at most once per window and tenant."""
    flag_limit_hits: int = 30
    """So many programs of a tenant ended by a limit within the window are unusual; 0: never."""
    flag_syscalls: int = 3
    """The same for programs ended by a denied system call."""
    flag_creations: int = 300
    """The same for sandboxes asked for."""
    flag_refusals: int = 60
    """The same for refused requests, of a tenant or of an address without a key."""
    flag_webhook: str | None = None
    """Address that is told of each, too, if `webhooks` are on; signed as for tenant `default`."""
    audit: str = "required"
    """What happens when an audit record cannot be written: `required`: the action neither;
    `flag`: it goes on, the log and the metrics say so. Records lie in the store."""
    audit_anchor: str | None = None
    """Where the head of the audit's chain is written down, out of the store's reach: a file, which
    is only appended to, or `syslog`; None: nowhere, and a shortened chain cannot be told."""
    audit_anchor_s: float = 30.0
    """At least so often, while there are new records."""
    audit_retention_s: float = 2_592_000.0
    """Records that `cellwall audit export --rotate` has taken leave the store after this time; what
    was not exported stays."""
    audit_reads: bool = False
    """Reads of files get audit records, too; otherwise they are only counted."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a number that is none or below zero."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and str(each.type).endswith("| None"):
                continue
            if str(each.type).partition(" ")[0] in {"int", "float"} and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0
            ):
                raise UsageError(
                    f"settings: {each.name} = {value!r} is not a number from 0",
                    remedy="run `cellwall settings`, or see docs/settings.md",
                )
        if self.node and self.node != AUTO:
            check_node(self.node)
        self._check_words()
        self._check_images()
        if self.keep_sessions and self.store == "none":
            raise UsageError(
                "settings: keep_sessions needs a store, which knows whose the sessions are",
                remedy="leave store out, or keep_sessions",
            )

    def _check_images(self) -> None:
        if self.images:
            from cellwall.images.patterns import check_patterns  # most servers list none

            check_patterns(self.images, "settings")
        if self.most_pulls < 1:
            raise UsageError("settings: most_pulls = 0 pulls nothing", remedy="give 1 or more")
        if self.templates_mb and self.most_builds < 1:
            raise UsageError("settings: most_builds = 0 builds nothing", remedy="give 1 or more")

    def _check_words(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise UsageError(
                    f"settings: {name} = {getattr(self, name)!r} is not known",
                    remedy=f"one of: {', '.join(words)}",
                )
        for name in ("port", "metrics_port"):
            if (getattr(self, name) or 0) > _LAST_PORT:
                raise UsageError(
                    f"settings: {name} = {getattr(self, name)} is no TCP port",
                    remedy=f"give one from 1 to {_LAST_PORT}, or 0 for any",
                )
        for name in self.port_headers:
            if not _HEADER.fullmatch(name) or is_never_passed(name.encode()):
                raise UsageError(
                    f"settings: port_headers has {name[:40]!r}, which never passes",
                    remedy="give names in lower case that are an application's own, as x-tenant",
                )
        for text in self.proxies:
            _network(text)
        token = self.metrics_token_sha256
        if token is not None and (len(token) != 64 or set(token) - set("0123456789abcdef")):
            raise UsageError(
                "settings: metrics_token_sha256 is not a SHA-256 in hexadecimal",
                remedy="make it with: printf %s TOKEN | sha256sum",
            )

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """The networks of `proxies`."""
        return tuple(map(_network, self.proxies))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        has_tcp = self.unix is None or any(each.port is not None for each in self.doors.values())
        return self.host in LOOPBACK or not has_tcp

    @property
    def is_tls(self) -> bool:
        """Whether it speaks TLS itself."""
        return self.tls_cert is not None
