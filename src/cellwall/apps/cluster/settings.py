"""The sections `[node]` and `[gateway]` of a settings file, beside those of a server."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from cellwall.apps.settings_loader import read_section
from cellwall.cluster.certificates import Files
from cellwall.cluster.gateway.settings import GatewaySettings
from cellwall.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node beside those of its server."""

    authority: str = ""
    """PEM file of the cluster's authority."""
    certificate: str = ""
    """PEM file of this node's certificate, from `cellwall cluster cert`."""
    key: str = ""
    """PEM file of its key."""
    fence_s: float = 10.0
    """Seconds without a gateway that hears it after which the node ends its sandboxes."""
    drain_s: float = 3600.0
    """A node that was told to end, by SIGTERM, or is drained lets its sandboxes live for so long;
    0: ends them at once. Programs that began end in any case."""

    def __post_init__(self) -> None:
        """Raise UsageError on what is missing."""
        for name in ("authority", "certificate", "key"):
            if not getattr(self, name):
                raise UsageError(
                    f"node: {name} is not given",
                    remedy="make it with `cellwall cluster cert`, and name its file in [node]",
                )
        if self.fence_s <= 0:
            raise UsageError(
                f"node: fence_s = {self.fence_s:g} is not above 0", remedy="give 10, or more"
            )
        if self.drain_s < 0:
            raise UsageError(
                f"node: drain_s = {self.drain_s:g} is below 0", remedy="give 0, or more"
            )

    @property
    def files(self) -> Files:
        """The certificate and its key."""
        return Files(Path(self.certificate), Path(self.key))


def node_settings(path: Path) -> NodeSettings:
    """Read `[node]`. Raises UsageError."""
    return read_section(path, "node", NodeSettings)


def gateway_settings(path: Path) -> GatewaySettings:
    """Read `[gateway]`; `CELLWALL_DIRECTORY` comes before `directory`. Raises UsageError."""
    found = read_section(path, "gateway", GatewaySettings)
    directory = os.environ.get("CELLWALL_DIRECTORY", "")
    return replace(found, directory=directory) if directory else found
