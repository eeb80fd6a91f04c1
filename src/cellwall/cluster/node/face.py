"""The face of a node: who asks is what the gateway says, and nothing else.

A node's only listener takes connections of gateways alone (`certificates.node_context`), so what
comes there was checked. The invariant: this face serves no other listener.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import unquote

from cellwall.model.errors import UsageError
from cellwall.server.auth.keys import SCOPES, KeyRing, Principal
from cellwall.server.core.errors import HttpError
from cellwall.server.http.face import OwnFace

if TYPE_CHECKING:
    from cellwall.cluster.node.guard import Heart
    from cellwall.cluster.node.offers import Offers
    from cellwall.engine.scheduling.quotas import Tenants
    from cellwall.server.auth.tokens import Tokens
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find

_OPEN = "/node"
_MOST_KEYS = 10_000
"""Keys whose holders are known by what gateways said of them."""


class NodeFace(OwnFace):
    """See the module."""

    has_checked_hosts = True

    def __init__(
        self,
        tokens: Tokens,
        tenants: Tenants,
        heart: Heart,
        offers: Offers,
        keys: GatewayKeys,
        *,
        has_doors: bool = False,
    ) -> None:
        """`tenants` learns each tenant's tier, `offers` ids of what may begin, `keys` holders.

        `has_doors`: whether doors are open, whose requests have come here as well.
        """
        super().__init__(tokens)
        self._has_doors = has_doors
        self._keys = keys
        self._offers = offers
        self._tenants = tenants
        self._heart = heart

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return the caller that the gateway names; None: it names none."""
        self._check_door(request)
        if self._heart.is_over:  # it was stopped or cut off, and its guard is on the way
            raise HttpError(
                503,
                "node_unreachable",
                "node: no gateway has heard it for too long, and it ends",
                remedy="create a new sandbox",
                headers={"connection": "close"},
            )
        headers = request.headers
        if headers.get("cellwall-scheme") == "http" and request.scope["type"] == "http":
            request.scope["scheme"] = "http"  # addresses are signed for the gateway's client
        tenant, scope = unquote(headers.get("cellwall-tenant", "")), headers.get("cellwall-scope")
        if not tenant or scope not in SCOPES:
            return None
        tier = unquote(headers.get("cellwall-tier", ""))
        try:
            self._tenants.have(tenant, tier)
        except UsageError as error:
            raise HttpError(503, "capacity", error.message, remedy=error.remedy) from None
        offered = headers.get("cellwall-id", "")
        if offered:
            self._offers.take(request, offered)
            request.origin.lent = self._offers.lent.take(tenant, offered)
            request.origin.is_trial = "cellwall-trial" in headers
        found = Principal(tenant, headers.get("cellwall-key-id", ""), scope)
        self._keys.name(found)
        return found

    def _check_door(self, request: Request) -> None:
        """Refuse what came to a door's own port at the gateway: it means no path of ours."""
        if not self._has_doors and request.headers.get("cellwall-door"):
            raise HttpError(
                404,
                "not_found",
                "door: it is open at the gateway, and not at this node",
                remedy="open it in the settings of every node",
            )

    def is_open(self, request: Request) -> bool:
        """Report whether the path is public, for gateways, or a token may stand for a key there."""
        self._check_door(request)
        path: str = request.scope["path"]
        return path == _OPEN or path.startswith(f"{_OPEN}/") or super().is_open(request)


class GatewayKeys(KeyRing):
    """The keys of a node: it has none, and accepts what a gateway has accepted.

    A key that is accepted no longer stops at the gateway, also where a token names it. What names
    no key, as a signature that any of a tenant's may have made, opens nothing here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._named: OrderedDict[str, Principal] = OrderedDict()

    def name(self, principal: Principal) -> None:
        """Note the holder of a key, as a gateway names it."""
        if self._named.get(principal.key_id) != principal:
            self._named[principal.key_id] = principal
            if len(self._named) > _MOST_KEYS:
                self._named.popitem(last=False)

    def accepted(self) -> set[str]:
        """Return the ids of the keys that gateways have named."""
        return set(self._named)

    def is_accepted(self, key_id: str) -> bool:
        """Report that the gateway has accepted the key."""
        return True

    def holder(self, key_id: str) -> Principal | None:
        """Return the principal of the key of that id, if a gateway has named it."""
        return self._named.get(key_id)
