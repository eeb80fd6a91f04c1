"""Nodes that the operator lists, and lists anew while the gateway runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.wire.links import Address
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from cellwall.cluster.providers.base import Take

_log = logging.getLogger("cellwall.gateway")


class Static:
    """Follows a list that is read again when it is asked for; a `Provider`."""

    def __init__(
        self, nodes: Iterable[str], read: Callable[[], Iterable[str]], asked: asyncio.Event
    ) -> None:
        """`read` returns the list anew once `asked` is set; it may raise UsageError.

        Raises UsageError on what is no address.
        """
        self._first = addresses_of(nodes)
        self._read = read
        self._asked = asked

    async def follow(self, take: Take) -> None:
        """See `Provider`. A list that cannot be read changes nothing."""
        take(self._first)
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                addresses = addresses_of(self._read())
            except UsageError as error:
                _log.error("read the nodes again: %s; the former ones stay", error)
            else:
                take(addresses)


def addresses_of(nodes: Iterable[str]) -> frozenset[Address]:
    """Return the addresses that texts as `10.0.0.5:7443` are. Raises UsageError."""
    return frozenset(_address(each) for each in nodes)


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise UsageError(
            f"gateway: nodes has {text[:60]!r}, which is no address",
            remedy='give HOST:PORT, as "10.0.0.5:7443"',
        )
    return Address(host.strip("[]"), int(port))
