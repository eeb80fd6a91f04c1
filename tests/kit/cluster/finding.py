"""Gateways that find their nodes among the endpoints of a Service, and nodes as pods have them."""

from __future__ import annotations

import os
import socket

from cellwall.cluster.certificates import ANY_ADDRESS, issue_gateway, issue_node
from kit.cluster.api_server import SERVICE
from kit.cluster.processes import Cluster, Process, _started
from kit.servers import configuration


def start_pod(made: Cluster, name: str, *addresses: str, fence_s: float = 3.0) -> int:
    """Start a node whose certificate is for these names, by default for any; return its port."""
    issue_node(made.folder / "authority", name, addresses or (ANY_ADDRESS,))
    with socket.create_server(("127.0.0.1", 0)) as free:
        made.ports[name] = free.getsockname()[1]
    return made.start_node(name, fence_s=fence_s).port


def start_finding_gateway(made: Cluster, fence_s: float = 3.0) -> Process:
    """Start a gateway that asks the API server of KUBECONFIG."""
    folder = made.folder / "finding"
    folder.mkdir()
    files = issue_gateway(made.folder / "authority", "finding")
    text = configuration(
        f'[gateway]\nprovider = "kubernetes"\nservice = "{SERVICE}"\n'
        f'authority = "{made.authority}"\ncertificate = "{files.certificate}"\n'
        f'key = "{files.key}"\nfence_s = {fence_s}\nprobe_s = 0.2',
        port=0,
    )
    gateway = _started(folder, "gateway", text, dict(os.environ), ())
    made.gateways.append(gateway)
    return gateway
