"""Nodes that are pods of Kubernetes: the endpoints of their Service.

The only module that knows the client of the API server, and imported only where it is chosen. The
invariant: an API server that is away, refuses or lies in another shape changes nothing: the pods of
its last whole answer stay.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from lightkube import AsyncClient, KubeConfig
from lightkube.resources.discovery_v1 import EndpointSlice

from cellwall.cluster.providers.slices import pods_in
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.cluster.gateway.wire.links import Address
    from cellwall.cluster.providers.base import Take

_LABEL = "kubernetes.io/service-name"
_AGAIN_S = 60
"""All slices are listed again so often: a watch whose connection is dead says nothing."""
_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 15.0
_log = logging.getLogger("cellwall.gateway")


class Kubernetes:
    """Follows the EndpointSlices of one Service; a `Provider`."""

    def __init__(self, service: str, namespace: str) -> None:
        """`namespace`: empty for that of the pod, or of the KUBECONFIG.

        Raises UsageError if nothing says where the API server is.
        """
        try:
            config = KubeConfig.from_env().get()
        except Exception as error:  # noqa: BLE001 - a file of others', wrong in any way
            raise UsageError(
                f"gateway: find the API server of Kubernetes: {error}",
                remedy="run the gateway in a pod with a service account, or set KUBECONFIG",
            ) from None
        self._service = service
        # Not by proxies of the environment: these are for what goes out of the cluster.
        self._client = AsyncClient(config, namespace=namespace or None, trust_env=False)
        self._pods: dict[str, Address] = {}
        self._failures = 0

    async def follow(self, take: Take) -> None:
        """See `Provider`."""
        try:
            while True:
                pause_s = await self._follow_for_a_while(take)
                await asyncio.sleep(pause_s)
        finally:
            await self._client.close()

    async def _follow_for_a_while(self, take: Take) -> float:
        """List and watch until that has to begin anew; return the seconds until then."""
        try:
            async with asyncio.timeout(_AGAIN_S):
                await self._list_and_watch(take)
        except TimeoutError:
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - whatever it is, the last answer holds
            return self._failed(error)
        return 0.0

    def _failed(self, error: Exception) -> float:
        """Return the seconds until the next try."""
        pause_s: float = min(_FIRST_PAUSE_S * 2**self._failures, _MOST_PAUSE_S)
        self._failures += 1
        if self._failures > 1:  # once is how a watch ends that is too old
            _log.warning(
                "endpoints of service %s: %s: %s; the %d known nodes stay",
                self._service,
                type(error).__name__,
                error,
                len(self._pods),
            )
        return pause_s

    async def _list_and_watch(self, take: Take) -> None:
        """Take all slices, then each change; ends by an error only."""
        labels: dict[str, Any] = {_LABEL: self._service}
        listed = self._client.list(EndpointSlice, namespace=None, labels=labels)
        slices = {_name_of(each): each async for each in _plain(listed)}
        self._say(slices, take)
        changes = self._client.watch(
            EndpointSlice,
            namespace=None,
            labels=labels,
            server_timeout=_AGAIN_S,
            resource_version=listed.resourceVersion,
        )
        async for kind, changed in changes:
            each = changed.to_dict()
            if kind == "DELETED":
                slices.pop(_name_of(each), None)
            else:
                slices[_name_of(each)] = each
            self._say(slices, take)

    def _say(self, slices: Mapping[str, Mapping[str, Any]], take: Take) -> None:
        self._pods = pods_in(slices.values(), self._pods)
        take(frozenset(self._pods.values()))


async def _plain(listed: Any) -> Any:  # noqa: ANN401 - of a client without types
    async for each in listed:
        yield each.to_dict()


def _name_of(each: Mapping[str, Any]) -> str:
    return str(each["metadata"]["name"])
