"""Connections to registries: resolve once, check, connect to that very address.

Called by the HTTP pool of `fetching`. A registry that the operator configured is connected to
wherever it is; what its pages and redirects name besides has to be public or listed by the
operator. The invariant: no step between the check and the connection resolves the name again.
"""

from __future__ import annotations

from collections.abc import Iterable

import httpcore

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.posting import Resolve


class NotDialled(httpcore.ConnectError):
    """No address of a name may be connected to; trying again would not change that."""


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Makes the pool's connections."""

    def __init__(
        self, policy: AddressPolicy, configured: Iterable[tuple[str, int]], resolve: Resolve
    ) -> None:
        """`configured` are hosts and ports of registries, whose addresses need no check."""
        self._policy = policy
        self._configured = frozenset(configured)
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the pool's own interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a name that may be and answers."""
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"its name has no address: {error}") from error
        allowed = [address for address in found if self._is_allowed(host, port, address)]
        if not allowed:
            raise NotDialled("its address is not public, and not listed")
        each_s = None if timeout is None else timeout / len(allowed)
        for address in allowed[:-1]:
            try:
                return await self._inner.connect_tcp(
                    address, port, each_s, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        # SECURITY: the address, never the name: a second look-up could answer something else.
        return await self._inner.connect_tcp(
            allowed[-1], port, each_s, local_address, socket_options
        )

    def _is_allowed(self, host: str, port: int, address: str) -> bool:
        return (
            (host.lower(), port) in self._configured
            or self._policy.is_listed(address)
            or self._policy.is_public(address)
        )

    async def sleep(self, seconds: float) -> None:
        """Wait, for the pool."""
        await self._inner.sleep(seconds)
