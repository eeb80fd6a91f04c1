"""Place of a request: which sandbox it is for, and which port of it, as headers and Host say.

Pure. The path decides what is asked; a place only says of which sandbox. Nothing here gives access:
keys and tokens do (`front.callers`). The invariant: a Host or a header that is not exactly of the
protocol's form names no sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DAEMON_PORT = 49983
"""Port by which clients mean the daemon of a sandbox: files and processes."""
INTERPRETER_PORT = 49999
"""Port by which clients mean its code interpreter."""
OWN_PORTS = frozenset({DAEMON_PORT, INTERPRETER_PORT})
"""Ports that this door answers itself; every other one is a server inside."""
_ID = "[a-z0-9]{1,64}"
_PORT = "[1-9][0-9]{0,4}"
_HOST = re.compile(rf"(?P<port>{_PORT})-(?P<id>{_ID})\.(?P<domain>[a-z0-9.-]{{1,253}}(:{_PORT})?)")
_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Place:
    """A sandbox and a port of it, as a request names them."""

    sandbox_id: str
    port: int = DAEMON_PORT
    is_by_host: bool = False
    """Whether the Host header says so: then no path of it belongs to the control plane."""

    @property
    def is_inside(self) -> bool:
        """Whether a server inside is meant, rather than this door."""
        return self.port not in OWN_PORTS


def place_of(headers: Mapping[str, str], domain: str | None = None) -> Place | None:
    """Return the place that a request names, or None; `headers` by lower-case name.

    `domain`: the operator's name below which the hosts of sandboxes are; None: any.
    """
    by_host = _by_host(headers.get("host", ""), domain)
    if by_host is not None:
        return by_host
    sandbox_id = headers.get("e2b-sandbox-id", "")
    if not re.fullmatch(_ID, sandbox_id):
        return None
    port = headers.get("e2b-sandbox-port", str(DAEMON_PORT))
    if not re.fullmatch(_PORT, port) or int(port) > _LAST_PORT:
        return None
    return Place(sandbox_id, int(port))


def _by_host(host: str, domain: str | None) -> Place | None:
    found = _HOST.fullmatch(host.lower())
    if found is None or int(found["port"]) > _LAST_PORT:
        return None
    if domain is not None and found["domain"].partition(":")[0] != domain.partition(":")[0]:
        return None
    return Place(found["id"], int(found["port"]), is_by_host=True)
