"""EndpointSlices of Kubernetes, read as addresses of nodes.

Pure: JSON as the API server gives it in, one address for each pod out. What the API allows and a
careless reader trips over: a pod in several slices at once, in two families of addresses, and a
pod's address that a later pod has. The invariant: a pod is one node, at one address, which stays
the same as long as any slice has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cellwall.cluster.gateway.wire.links import Address

_FAMILIES = frozenset({"IPv4", "IPv6"})
_PORT = "node"
"""The name of a node's port where a Service has several."""


def pods_in(
    slices: Iterable[Mapping[str, Any]], before: Mapping[str, Address]
) -> dict[str, Address]:
    """Return the address of each pod that is not about to end; `before`: what was returned last.

    A pod that is not ready is among them: whether a node takes work is what it says itself, and a
    cluster whose API server cannot reach its machines calls all of their pods not ready.
    """
    known: dict[str, list[Address]] = {}
    ending: set[str] = set()
    for each in slices:
        port = _port_of(each)
        if each.get("addressType") not in _FAMILIES or port is None:
            continue
        for endpoint in each.get("endpoints") or ():
            # All addresses of an endpoint are the same pod's; the API tells clients to use one.
            address = Address(str(endpoint["addresses"][0]), port)
            pod = str((endpoint.get("targetRef") or {}).get("uid") or address)
            known.setdefault(pod, []).append(address)
            if (endpoint.get("conditions") or {}).get("terminating"):
                ending.add(pod)
    return {
        pod: _one(addresses, before.get(pod))
        for pod, addresses in known.items()
        if pod not in ending
    }


def _one(addresses: list[Address], before: Address | None) -> Address:
    if before is not None and before in addresses:
        return before
    return min(addresses, key=lambda each: (":" in each.host, each))


def _port_of(each: Mapping[str, Any]) -> int | None:
    """Return the port of a slice's nodes: the one named `node`, or the only one."""
    ports = [port for port in each.get("ports") or () if port.get("port")]
    named = [port for port in ports if port.get("name") == _PORT]
    found = named or (ports if len(ports) == 1 else [])
    return int(found[0]["port"]) if found else None
