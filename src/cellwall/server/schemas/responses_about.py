"""Schemas of what the server says about itself: templates, languages, runtimes, numbers.

The rest of its answers is in `responses`; what is said there of all of them holds here, too.
"""

from __future__ import annotations

from typing import Literal

from cellwall.server.schemas.responses import Shown
from cellwall.server.schemas.templates import OwnTemplate


class Template(Shown):
    """A template."""

    name: str
    description: str
    packages: list[str]
    preload: list[str]
    languages: list[str]
    built: bool


class Templates(Shown):
    """The templates there are."""

    templates: list[Template]
    """Those of the operator."""
    own: list[OwnTemplate]
    """Those that the tenant has built."""


class Language(Shown):
    """A language; with a context it keeps state between cells."""

    name: str
    aliases: list[str]
    extensions: list[str]
    context: bool
    compiled: bool
    compile_options: list[str]
    installed: bool
    version: str | None
    install: str


class Languages(Shown):
    """The languages there are."""

    languages: list[Language]


class HostFinding(Shown):
    """One feature of this host."""

    feature: str
    grade: Literal["PASS", "CAUTION", "FAIL"]
    detail: str
    remedy: str


class Started(Shown):
    """What the latest starts of a runtime took; for who may manage, null for others."""

    count: int
    p50_ms: float


class Runtime(Shown):
    """An isolation technology."""

    name: str
    level: Literal["process", "namespace", "kernel", "vm"]
    allowed: bool
    available: bool
    missing: list[str]
    remedies: list[str]
    findings: list[HostFinding]
    start: Started | None


class Runtimes(Shown):
    """The runtimes there are."""

    runtimes: list[Runtime]


class Pool(Shown):
    """Parked sandboxes."""

    parked: int
    starting: int
    destroying: int
    claims_parked: int
    claims_started: int
    failed: int


class Quotas(Shown):
    """What a tenant may have; null where only the server's own bounds count."""

    running: int | None
    queued: int | None
    creates_per_min: int | None
    sandboxes: int | None
    memory_mb: int | None
    cpus: float | None
    file_mb: int | None
    output_mb: int | None
    stored_mb: int | None
    history_mb: int | None
    snapshots_mb: int | None
    connections: int | None
    least_isolation: Literal["process", "namespace", "kernel", "vm"] | None
    runtimes: list[str] | None
    images: list[str] | None
    templates: int | None
    templates_mb: int | None
    builds: int | None


class QuotaUse(Shown):
    """What a tenant has now."""

    running: int
    queued: int
    sandboxes: int
    memory_mb: int
    cpus: float
    file_mb: int
    stored_mb: float
    history_mb: int
    snapshots_mb: int
    connections: int


class Quota(Shown):
    """A tenant's tier, quotas and use."""

    tenant: str
    tier: str
    quotas: Quotas
    use: QuotaUse


class WebhookSecret(Shown):
    """What signs a tenant's webhooks."""

    secret: str
    header: str


class Promises(Shown):
    """What of this machine is promised, and what may be; null: nothing is known that bounds it."""

    memory_mb: int
    memory_mb_most: int | None
    processes: int
    processes_most: int | None
    disk_mb: int
    disk_mb_most: int | None


class Copies(Shown):
    """Copies of sandboxes since the start, and the snapshots that are kept."""

    forks: int
    """Number of sandboxes that forks made."""
    restores: int
    """Number of sandboxes that were made of snapshots."""
    snapshots_made: int
    snapshots: int
    """Number of the snapshots that are kept now."""
    snapshots_bytes: int
    """Bytes of these: their memory and their files."""
    hibernations: int
    """Number of times that a sandbox was hibernated."""
    wakes: int
    """Number of times that a hibernated sandbox came back."""
    refused: dict[str, int]
    """Number of copies and snapshots that were not made, by the code of the error."""


class ServerStats(Shown):
    """Numbers of the whole server."""

    requests: int
    runs: int
    running: int
    queued: int
    sandboxes: int
    paused: int
    """Number of the sandboxes that are paused."""
    hibernated: int
    """Number of the sandboxes that are hibernated."""
    hibernated_bytes: int
    """Bytes of disk that these take."""
    background_failures: int
    pool: Pool
    copies: Copies
    promises: Promises
    tenants: list[Quota] | None
    """Of every tenant seen since the start; only for scope `admin`."""


class Stats(Shown):
    """Numbers of the caller's own things; of the whole server for keys that may manage it."""

    version: str
    uptime_s: float
    sandboxes: int
    snapshots: int
    """Number of the caller's snapshots."""
    executions: int
    server: ServerStats | None


class Key(Shown):
    """An API key, without the key itself."""

    id: str
    tenant: str
    scope: Literal["run", "manage", "admin"]
    name: str | None
    created_at: str | None
    """Null for keys of the configuration."""
    expires_at: str | None
    revoked_at: str | None
    source: Literal["store", "configuration"]


class Secret(Shown):
    """A secret, without its value."""

    name: str
    hosts: list[str]
    places: list[Literal["header", "query", "basic"]]
    changed_at: str


class Secrets(Shown):
    """A tenant's secrets, by name."""

    secrets: list[Secret]


class Keys(Shown):
    """The API keys, oldest first."""

    keys: list[Key]


class NewKey(Key):
    """A key that was made now. This is the only time it is shown."""

    key: str
