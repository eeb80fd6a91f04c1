"""Made-up addresses: which host name a program means when it dials 198.18.x.y.

Each sandbox has a table of its own. A name keeps its address for the sandbox's life, and an address
is never given to a second name, because a program may hold it. The range is 198.18.0.0/15, which
RFC 2544 sets apart for tests between devices: it is on no network.
"""

from __future__ import annotations

from ipaddress import IPv4Address

_FIRST = int(IPv4Address("198.18.0.1"))
MOST_NAMES = 4096
"""Most names of one sandbox; each costs some 200 bytes in the proxy."""


class Names:
    """The table of one sandbox."""

    def __init__(self) -> None:
        """Begin without names."""
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def address_of(self, name: str) -> str | None:
        """Return the address of `name`, made up at the first call; None if the table is full."""
        known = self._addresses.get(name)
        if known is not None or len(self._addresses) >= MOST_NAMES:
            return known
        made = str(IPv4Address(_FIRST + len(self._addresses)))
        self._addresses[name] = made
        self._names[made] = name
        return made

    def name_of(self, address: str) -> str | None:
        """Return the name behind a made-up address; None if it is no such address."""
        return self._names.get(address)
