"""Where a request goes, by its method and path, and by the session that a client of MCP names.

Pure; `exchange` does it. An id begins with the name of the node that has its object; signed tokens
and sessions do, too. The invariant: nothing in a body decides where a request goes.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from cellwall.model.ids import NODE_LENGTH, node_of

Kind = Literal["own", "object", "new", "batch", "any", "all", "data", "template", "refused"]
"""`own`: the gateway answers; `object`: the node that has it; `new`: a node is chosen, and may be
chosen again; `batch`: many of these; `any`: each node answers alike; `all`: the answers of all
nodes together; `data`: of what is named without its node (`data.Data`); `template`: a door's, for
the node of the template that `name` is, or that the fields `path` of its body say; `refused`: it
has no meaning for many machines yet."""

_NEW = frozenset({("POST", "/execute"), ("POST", "/sandboxes")})
_OWN = frozenset({"/health", "/nodes"})
_ANY = frozenset({"/openapi.json", "/docs", "/docs/style.css", "/languages", "/runtimes"})
_ALL = frozenset({"/sandboxes", "/snapshots", "/stats", "/quota"})
_BATCH = "/executions/batch"
_KNOWN = frozenset({"/health", "/execute", _BATCH}) | _ANY | _ALL
_DATA = re.compile(r"/(?:volumes|images|templates)(?:/(?!\.{1,2}(?:/|$))[^/]+){0,2}")
"""Of no part that could lead out of it."""
_BUILD = re.compile(r"/templates/(build)s/([^/]+)(?:/.*)?", re.DOTALL)
_OBJECT = re.compile(r"/(sandbox|execution|snapshot)(?:e?s)/([^/]+)(?:/.*)?", re.DOTALL)
_SIGNED = re.compile(r"/signed/([^/]+)")
_MCP = "/mcp"
_KEPT = re.compile(r"/(key|secret)s(?:/([^/]+))?|/(audit|webhooks)")
"""What gateways keep themselves."""
_PORTS = re.compile(r"/sandboxes/[a-z0-9]+/ports/")

Makes = Literal["", "program", "sandbox", "fork", "call"]
"""What a request of a door makes that counts in its tenant's quotas over all nodes: a program which
its client waits for, a sandbox, as many copies as its body says; `call`: its body says which of
these; empty: nothing."""


class Way(NamedTuple):
    """Where a request goes."""

    kind: Kind
    node: str = ""
    """The name of the node that has the object, or GATEWAYS for what gateways keep until then."""
    thing: str = ""
    """What the object is: `sandbox`, `execution`, `snapshot`, `token`, `session`, `key`, `secret`,
    `audit`, `webhooks`."""
    name: str = ""
    """The object's id."""
    may_have_token: bool = False
    """Whether a token of the node's may stand for a key."""
    path: str = ""
    """Where new work, or a list, was asked for."""
    makes: Makes = ""


def way_of(method: str, path: str, session: str = "") -> Way:
    """Return where a request goes; `session`: its header `mcp-session-id`, empty without one."""
    kind = _kind_of(method, path)
    if kind is not None:
        return Way(kind, path=path)
    kept = _KEPT.fullmatch(path)
    if kept:
        return Way("own", thing=kept[1] or kept[3], name=kept[2] or "", path=path)
    signed = _SIGNED.fullmatch(path)
    if signed:
        token = signed[1]
        return Way("object", token[:NODE_LENGTH], "token", token, may_have_token=True)
    if path == _MCP:  # without a session it begins one, on any node
        way = Way("object", session[:NODE_LENGTH], "session", session) if session else Way("any")
        return way._replace(makes="call") if method == "POST" else way
    found = _OBJECT.fullmatch(path) or _BUILD.fullmatch(path)
    if found and found[2] != "batch":
        has_token = _PORTS.match(path) is not None
        return Way("object", node_of(found[2]), found[1], found[2], may_have_token=has_token)
    return Way("data", path=path) if _DATA.fullmatch(path) else Way("refused")


def _kind_of(method: str, path: str) -> Kind | None:
    """Return the kind of a path without an id."""
    if path.startswith("/nodes/") or (path in _OWN and method in {"GET", "HEAD"}):
        return "own"
    if (method, path) in _NEW:
        return "new"
    if (method, path) == ("POST", _BATCH):
        return "batch"
    if method in {"GET", "HEAD"} and path in _ALL:
        return "all"
    # With another method than those of the path any node says so.
    return "any" if path in _KNOWN else None
