"""Where a request goes, by its method and path alone.

Pure; `exchange` does it. An id begins with the name of the node that has its object; a signed token
does, too. The invariant: nothing in a body decides where a request goes.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from cellwall.model.ids import NODE_LENGTH, node_of

Kind = Literal["own", "object", "new", "any", "all", "refused"]
"""`own`: the gateway answers; `object`: the node that has it; `new`: a node is chosen, and may be
chosen again; `any`: each node answers alike; `all`: the answers of all nodes together; `refused`:
it has no meaning for many machines yet."""

_NEW = frozenset({("POST", "/execute"), ("POST", "/sandboxes")})
_OWN = frozenset({"/health", "/nodes"})
_ANY = frozenset(
    {"/openapi.json", "/docs", "/docs/style.css", "/templates", "/languages", "/runtimes"}
)
_ALL = frozenset({"/sandboxes", "/executions", "/snapshots"})
_OBJECT = re.compile(r"/(sandbox|execution|snapshot)(?:e?s)/([^/]+)(?:/.*)?", re.DOTALL)
_SIGNED = re.compile(r"/signed/([^/]+)")
_PORTS = re.compile(r"/sandboxes/[a-z0-9]+/ports/")


class Way(NamedTuple):
    """Where a request goes."""

    kind: Kind
    node: str = ""
    """The name of the node that has the object."""
    thing: str = ""
    """What the object is: `sandbox`, `execution`, `snapshot`, `token`."""
    name: str = ""
    """The object's id."""
    may_have_token: bool = False
    """Whether a token of the node's may stand for a key."""


def way_of(method: str, path: str) -> Way:
    """Return where a request goes."""
    if path in _OWN:
        return Way("own")
    if path in _ANY and method in ("GET", "HEAD"):
        return Way("any")
    if (method, path) in _NEW:
        return Way("new")
    if path in _ALL and method in ("GET", "HEAD"):
        return Way("all")
    signed = _SIGNED.fullmatch(path)
    if signed:
        token = signed[1]
        return Way("object", token[:NODE_LENGTH], "token", token, may_have_token=True)
    found = _OBJECT.fullmatch(path)
    if found and found[2] != "batch":
        has_token = _PORTS.match(path) is not None
        return Way("object", node_of(found[2]), found[1], found[2], may_have_token=has_token)
    return Way("refused")
