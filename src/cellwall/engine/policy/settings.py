"""What the operator decides: defaults, bounds of the pool, whether `process` may be used.

Read once, when an engine is made; callers cannot change it through requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cellwall.engine.policy.levels import TRUST_WORDS, Trust, trust_table
from cellwall.engine.policy.pause_choice import check_seconds
from cellwall.model.errors import UsageError
from cellwall.model.ids import check_node
from cellwall.model.limits import Limits
from cellwall.model.network import MODES
from cellwall.model.outcome import IsolationLevel
from cellwall.runtimes.registry import FACTORIES


def every_runtime() -> tuple[str, ...]:
    """Every runtime that is registered, fastest first."""
    return tuple(FACTORIES)


def check_runtimes(names: Sequence[str], where: str) -> None:
    """Raise `UsageError` on the name of a runtime that is not known, or on no name at all."""
    unknown = sorted(set(names) - set(every_runtime()))
    if unknown or not names:
        raise UsageError(
            f"{where}: runtimes: {unknown[0]!r} is not known"
            if unknown
            else f"{where}: runtimes: none is allowed",
            remedy=f"known runtimes: {', '.join(every_runtime())}",
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one engine."""

    runtimes: tuple[str, ...] = field(default_factory=every_runtime)
    """Which runtimes may serve requests, by name; none of the others is ever asked. `process`
    needs `allow_process`, too."""

    least_isolation: str = "process"
    """Level below which nothing is served: a request that names a lower one is refused, one that
    names none gets this one. `process`, `namespace`, `kernel` or `vm`."""
    default_isolation: str = "namespace"
    """Level of a request that names none, unless `least_isolation` or its tier's is higher."""
    trust: Mapping[str, Trust] = field(default_factory=trust_table)
    """What `trust=untrusted`, `semi` and `trusted` stand for."""
    allow_process: bool = False
    """Whether the `process` runtime, which isolates nothing, may serve requests."""
    pool_min: int = 2
    """Parked sandboxes kept per template that is in use. 0 together with `pool_max=0`: no pool."""
    pool_max: int = 16
    """Most parked sandboxes per template, and per limits that recur (four sets of them at most);
    between the two, recent concurrency decides."""
    pool_idle_s: float = 600.0
    """Seconds without a claim after which a template's parked sandboxes are given up, and without a
    start after which what a runtime has ready for the next one is."""
    profiles: tuple[str, ...] = ()
    """Profiles of system calls that a sandbox may ask for, besides the default: `debug`, with which
    its programs may trace one another (strace, gdb)."""
    network: str = "allow"
    """Widest network policy that a request may have: `none`, `allow` or `open`."""
    network_addresses: tuple[str, ...] = ()
    """Networks of the operator's (`10.1.0.0/16`) that sandboxes may connect to, where their policy
    allows it, beside public addresses."""
    name_servers: tuple[str, ...] = ()
    """Name servers for sandboxes, as `address` or `address:port`; empty: as this machine
    resolves."""
    network_authorities: str = ""
    """Path of a PEM file with certificates of the operator's, by which the servers behind opened
    TLS are verified beside this machine's authorities; empty: none."""
    packages: object = None
    """What sandboxes may install where their policy has packages: what `PackagePolicy.of` takes,
    such as `{"registries": ["pypi"], "deny": ["torch"]}`; true is everything, as wheels, and the
    default unless `network` is `none`. In the variable `any`, `none` or JSON."""
    package_registries: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Registries that the package broker asks, such as
    `{"registry": "pypi", "url": "https://packages.example.org/simple/"}`; empty: what pip, uv and
    npm of this machine ask. In the variable JSON."""
    image_registries: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Registries that images are pulled from, by the name that images have, such as
    `{"registry": "docker.io", "url": "https://mirror.example.org"}`; none is asked that is not
    listed. In the variable JSON."""
    image_credentials: str = ""
    """Path of a file with credentials of registries, in the form of Docker's `config.json`
    (`auths`), which its owner alone may read; a URL of `image_registries` with a user goes before
    it. Empty: none."""
    images_mb: int = 20_480
    """Most MiB of unpacked images on disk, of all tenants; above it those that were used least
    recently go, unless a sandbox uses them. 0: no bound."""
    snapshots_mb: int = 4096
    """Most MiB on disk of sessions that are written down, of all tenants: snapshots, and forks that
    are being made or have living copies."""
    snapshots_dir: str = ""
    """Directory in which snapshots outlive the engine and a reboot, on a local disk; the engine's
    user alone may read it. Empty: they end with the engine; a server then uses `snapshots` in its
    state directory, unless it has no store."""
    snapshots_key_file: str = ""
    """Path of a file with a key, 64 hexadecimal digits, which the engine's user alone may read, by
    which stored snapshots are encrypted; copies at work are in memory then, not on a disk. Empty:
    not encrypted."""
    limits: Limits = field(default_factory=Limits)
    """Limits of a request that names none; parked sandboxes are started with these."""
    paused_s: float = 86_400.0
    """Most seconds that a sandbox is paused, altogether or since its life was last extended; then
    it ends."""
    page_out_s: float | None = None
    """Seconds of a pause after which a sandbox's memory is written to swap, where this machine has
    some (the jail and gVisor). None: never, so that nothing of a tenant's comes to a disk."""
    hibernate_s: float | None = None
    """Seconds of a pause after which a sandbox whose owner says nothing is hibernated (the jail),
    as far as nothing would be lost. None: never."""
    collect_bytes: int = 64 * 1024 * 1024
    """Most bytes brought back by `collect` in one execution; they end up in our memory."""
    compile_cache_mb: int = 1024
    """Most MiB of what compilers made that are kept on disk, of all tenants; 0 keeps nothing. The
    latest 64 MiB of it, a quarter at most, are in memory, too."""
    history_mb: int = 256
    """Most MiB that the checkpoints of one sandbox's work area take on this machine's disk; 0: no
    checkpoints."""
    compile_cache_days: float = 30.0
    """Days after its last use that something compiled is kept."""
    node: str = ""
    """Name of the node that ids of what is made here begin with; empty: they begin with none. A
    server has it from its own setting `node`."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a name of a runtime, level or trust that is not known."""
        IsolationLevel.called(self.least_isolation)
        IsolationLevel.called(self.default_isolation)
        check_runtimes(self.runtimes, "settings")
        if odd_profiles := set(self.profiles) - {"debug"}:
            raise UsageError(
                f"settings: profiles: {min(odd_profiles)!r} is not known", remedy="say 'debug'"
            )
        if self.network not in MODES:
            raise UsageError(
                f"settings: network: {self.network!r} is not known",
                remedy=f"policies: {', '.join(MODES)}",
            )
        if self.network_addresses:
            from cellwall.egress.addresses import AddressPolicy  # most engines list none

            AddressPolicy(self.network_addresses)  # UsageError on one that is no network
        if self.network_authorities and not os.path.isfile(self.network_authorities):
            raise UsageError(
                f"settings: network_authorities: {self.network_authorities!r} is no file",
                remedy="give the path of a PEM file",
            )
        check_seconds("settings: hibernate_s", self.hibernate_s)  # a kept sandbox has it as its own
        if self.node:
            check_node(self.node)
        if self.image_registries:
            self._check_images()
        if self.packages is None:
            object.__setattr__(self, "packages", self.network != "none")
        if self.packages is not True or self.package_registries:
            self._check_packages()
        if set(self.trust) != set(TRUST_WORDS):
            odd = sorted(set(self.trust) ^ set(TRUST_WORDS))
            raise UsageError(
                f"settings: trust: {odd[0]!r} is not one of its words, or is missing",
                remedy=f"its words: {', '.join(TRUST_WORDS)}",
            )

    def _check_images(self) -> None:
        from cellwall.images.registry import Registries  # most operators list none

        Registries.of(self.image_registries)

    def _check_packages(self) -> None:
        from cellwall.egress.packages.upstream import Upstream  # most operators leave both
        from cellwall.model.packages import PackagePolicy

        PackagePolicy.of(self.packages)  # UsageError on what is no policy
        for registry in self.package_registries:
            Upstream.of(registry)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> EngineSettings:
        """Read the variables there are.

        `CELLWALL_RUNTIMES`, `CELLWALL_LEAST_ISOLATION`, `CELLWALL_DEFAULT_ISOLATION`,
        `CELLWALL_TRUST` (`untrusted=kernel,trusted=process:allow`), `CELLWALL_ALLOW_PROCESS`,
        `CELLWALL_PROFILES`, `CELLWALL_NETWORK_ADDRESSES` and `CELLWALL_NAME_SERVERS` (with
        commas), `CELLWALL_NETWORK`, `CELLWALL_NETWORK_AUTHORITIES`,
        `CELLWALL_PACKAGES` (`any`, `none` or JSON), `CELLWALL_PACKAGE_REGISTRIES` and
        `CELLWALL_IMAGE_REGISTRIES` (JSON), `CELLWALL_IMAGE_CREDENTIALS`,
        `CELLWALL_SNAPSHOTS_DIR`, `CELLWALL_SNAPSHOTS_KEY_FILE` and `CELLWALL_POOL_SIZE`.
        """
        source = os.environ if environ is None else environ
        names = source.get("CELLWALL_RUNTIMES", ",".join(every_runtime()))
        found = cls(
            tuple(name.strip() for name in names.split(",") if name.strip()),
            source.get("CELLWALL_LEAST_ISOLATION", "process"),
            source.get("CELLWALL_DEFAULT_ISOLATION", "namespace"),
            {**trust_table(), **_trust(source.get("CELLWALL_TRUST", ""))},
            allow_process=source.get("CELLWALL_ALLOW_PROCESS") == "1",
            profiles=_listed(source.get("CELLWALL_PROFILES", "")),
            network=source.get("CELLWALL_NETWORK", "allow"),
            network_addresses=_listed(source.get("CELLWALL_NETWORK_ADDRESSES", "")),
            name_servers=_listed(source.get("CELLWALL_NAME_SERVERS", "")),
            network_authorities=source.get("CELLWALL_NETWORK_AUTHORITIES", ""),
            packages=_packages(source.get("CELLWALL_PACKAGES")),
            image_registries=_registries(source, "CELLWALL_IMAGE_REGISTRIES", "docker.io"),
            image_credentials=source.get("CELLWALL_IMAGE_CREDENTIALS", ""),
            snapshots_dir=source.get("CELLWALL_SNAPSHOTS_DIR", ""),
            snapshots_key_file=source.get("CELLWALL_SNAPSHOTS_KEY_FILE", ""),
            package_registries=_registries(source, "CELLWALL_PACKAGE_REGISTRIES", "pypi"),
        )
        size = source.get("CELLWALL_POOL_SIZE")
        if size is None:
            return found
        if not size.isdecimal() or int(size) > 1000:
            raise UsageError(
                f"settings: CELLWALL_POOL_SIZE={size!r} is not a size",
                remedy="give a whole number from 0 to 1000; 0 switches the pool off",
            )
        return replace(found, pool_min=min(2, int(size)), pool_max=int(size))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _packages(text: str | None) -> object:
    if text is None:
        return None
    return text == "any" if text in {"any", "none"} else _json("CELLWALL_PACKAGES", text)


def _registries(
    source: Mapping[str, str], name: str, example: str
) -> tuple[Mapping[str, Any], ...]:
    found = _json(name, source.get(name, "[]"))
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UsageError(
            f"settings: {name} is no list of objects",
            remedy=f'give JSON: [{{"registry": "{example}", "url": "https://mirror.example.org/"}}]',
        )
    return tuple(found)


def _json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise UsageError(f"settings: {name} is no JSON", remedy="give one JSON value") from None


def _trust(text: str) -> dict[str, Trust]:
    """Read `WORD=LEVEL,WORD=LEVEL:NETWORK`."""
    found = {}
    for part in text.split(","):
        if part.strip():
            word, _, meaning = part.partition("=")
            level, _, network = meaning.partition(":")
            found[word.strip()] = Trust(level.strip(), network.strip() or "none")
    return found
