"""What a gateway answers at `/volumes`, `/images` and `/templates`.

Made by `apps`, and asked by `gateway` for each such request. The invariant: a method or a path that
is not here goes to a node, which says what it says of it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from cellwall.cluster.gateway.data.finder import Finder
from cellwall.cluster.gateway.data.images import Images
from cellwall.cluster.gateway.data.lead import Lead
from cellwall.cluster.gateway.data.named import NamedTemplates
from cellwall.cluster.gateway.data.templates import Templates
from cellwall.cluster.gateway.data.visit import Visit
from cellwall.cluster.gateway.data.volumes import Volumes
from cellwall.cluster.gateway.routing import Way
from cellwall.model.errors import NotFound

if TYPE_CHECKING:
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.places import Places
    from cellwall.cluster.gateway.data.visit import Work
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead

_PATH = re.compile(r"/([a-z]+)(?:/([^/]+)(?:/([^/]+))?)?")


class Data:
    """See the module."""

    def __init__(self, gateway: Gateway, places: Places) -> None:
        """`places`: where things lie; several gateways agree on it."""
        self._gateway = gateway
        self.finder = finder = Finder(gateway.book, places)
        """What knows where things lie."""
        volumes, templates = Volumes(gateway.book, finder), Templates(gateway.book, finder)
        self.named = NamedTemplates(gateway.book, templates)
        """What finds the templates that requests of doors name."""
        images = Images(gateway.book)
        self._whole = {
            ("GET", "volumes"): volumes.index,
            ("POST", "volumes"): volumes.create,
            ("GET", "images"): images.index,
            ("POST", "images"): images.pull,
            ("GET", "templates"): templates.index,
            ("POST", "templates"): templates.build,
        }
        self._one = {
            ("GET", "volumes"): volumes.get,
            ("DELETE", "volumes"): volumes.remove,
            ("GET", "images"): images.get,
            ("DELETE", "images"): images.remove,
            ("GET", "templates"): templates.get,
            ("DELETE", "templates"): templates.remove,
        }
        self._copy, self._pulled = volumes.copy, images.pulled

    def begin(self, client: ClientLink, head: RequestHead, way: Way, caller: Caller) -> Visit:
        """Begin to answer a request."""
        work = self._work(head.method.decode("latin-1"), head.path)
        return Visit(self._gateway, client, head, way, caller).begin(work or _anywhere)

    def _work(self, method: str, path: str) -> Work | None:
        """Return what is done with a request; None: a node says what it is."""
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        method = "GET" if method == "HEAD" else method
        kind, name, more = found.groups()
        if name is None:
            return self._whole.get((method, kind))
        if more is not None:
            if (method, kind, more) == ("POST", "volumes", "copy"):
                return partial(_named, self._copy, name)
            if (method, kind, name) == ("GET", "images", "pulls"):
                return partial(_named, self._pulled, more)
            return None
        one = self._one.get((method, kind))
        return None if one is None else partial(_named, one, name)

    def lead(self, caller: Caller) -> Lead:
        """Return the lead of a request that names what the node that was asked lacks."""
        return Lead(self.finder, caller)


async def _named(work: Callable[[Visit, str], Awaitable[None]], name: str, visit: Visit) -> None:
    """Do what is asked of one thing; where there is none, a node says so as a server does."""
    try:
        await work(visit, unquote(name))
    except NotFound:
        await visit.go(Way("any"))


async def _anywhere(visit: Visit) -> None:
    """Have any node say what it says to a request."""
    await visit.go(Way("any"))
