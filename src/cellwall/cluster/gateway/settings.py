"""What the operator decides about a gateway. Values only; `apps` reads the file.

Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cellwall.model.errors import UsageError

_MARGIN_S = 3.0
"""How much longer than a node's fence a gateway waits: the last answer was on its way that long."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of one gateway."""

    nodes: tuple[str, ...] = ()
    """Addresses of the nodes, as `10.0.0.5:7443` or `a.example:7443`; read again at SIGHUP."""
    provider: Literal["static", "kubernetes"] = "static"
    """Where nodes are: `static`, in `nodes`; `kubernetes`, among the endpoints of `service`."""
    service: str = ""
    """The Service of Kubernetes whose endpoints are the nodes."""
    namespace: str = ""
    """The namespace of `service`; empty: the gateway's own."""
    authority: str = ""
    """PEM file of the cluster's authority."""
    certificate: str = ""
    """PEM file of this gateway's certificate, from `cellwall cluster cert`."""
    key: str = ""
    """PEM file of its key."""
    probe_s: float = 1.0
    """Each node is asked so often whether it is there."""
    fence_s: float = 10.0
    """A node that has heard no gateway for so long ends its sandboxes; as the nodes have it."""
    audit: str = ""
    """Store of this gateway's own audit, as `sqlite:////var/lib/cellwall-gateway/audit.db`, which
    no other process writes; empty: it keeps none. `cellwall audit --store` reads it."""
    gateways: int = 1
    """Gateways that share the nodes: each keeps its part of two young programs for each processor
    at a node, and lets the others wait their turn."""

    directory: str = ""
    """Address of the PostgreSQL database over which several gateways agree, as
    `postgresql://cellwall_gateway@db.example/directory`; empty: this gateway is the only one."""
    ended_keys_days: int = 30
    """Keys that were revoked, or have expired, are in lists for so many days, and then removed from
    the directory."""
    name: str = ""
    """Name of this gateway among them; by default its machine's name and its port."""

    def __post_init__(self) -> None:
        """Raise UsageError on what cannot be."""
        self._check_provider()
        for name in ("authority", "certificate", "key"):
            if not getattr(self, name):
                raise UsageError(
                    f"gateway: {name} is not given",
                    remedy="make it with `cellwall cluster cert`, and name its file in [gateway]",
                )
        if self.gateways < 1:
            raise UsageError(
                f"gateway: gateways = {self.gateways} is below 1", remedy="count this one, too"
            )
        if self.ended_keys_days < 1:
            raise UsageError(
                f"gateway: ended_keys_days = {self.ended_keys_days} is below 1",
                remedy="keep ended keys in lists for a day at least",
            )
        if not 0 < self.probe_s < self.fence_s:
            raise UsageError(
                f"gateway: probe_s = {self.probe_s:g} is not between 0 and fence_s",
                remedy="probe a node several times in fence_s",
            )

    def _check_provider(self) -> None:
        wanted = {"static": ("nodes",), "kubernetes": ("service", "namespace")}
        if self.provider not in wanted:
            raise UsageError(
                f"gateway: provider = {self.provider[:40]!r} is not known",
                remedy="give static or kubernetes",
            )
        for name in sorted({"nodes", "service", "namespace"} - {*wanted[self.provider]}):
            if getattr(self, name):
                raise UsageError(
                    f"gateway: {name} means nothing with provider = {self.provider}",
                    remedy="leave it out, or name the other provider",
                )
        if self.provider == "static" and not self.nodes:
            raise UsageError(
                "gateway: it has no nodes", remedy='give nodes = ["10.0.0.5:7443"] in [gateway]'
            )
        if self.provider == "kubernetes" and not self.service:
            raise UsageError(
                "gateway: service is not given",
                remedy="name the Service that has the nodes in [gateway]",
            )

    @property
    def lost_after_s(self) -> float:
        """Seconds without an answer after which a node has ended everything in it."""
        return self.fence_s + _MARGIN_S
