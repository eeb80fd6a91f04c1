"""Networks: E2B's lists of what is allowed and denied, as a network policy of ours.

Theirs is open unless denied, ours is closed unless allowed; a list that cannot be said in our words
is refused. Allowed hosts are reached at the ports of the web. The invariant: a policy is never
wider than what the client wrote.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.answers import empty, refused
from cellwall.apps.doors.e2b.control import bodies
from cellwall.apps.doors.e2b.control.finding import existing
from cellwall.apps.doors.e2b.facts import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.apps.doors.door import Visit

_OPEN, _NONE = "open", "none"
_EVERYTHING = frozenset({EVERYWHERE, "::/0"})
_NEEDS_ALL = (
    "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
    "to block all other traffic."
)


def policy_of(
    allow_internet: bool | None, allow: Sequence[str] | None, deny: Sequence[str] | None
) -> str | list[str] | None:
    """Return the policy, as `network=` takes it; None if nothing was said of it.

    Raises the 400 that names the field.
    """
    if allow_internet is None and not allow and not deny:
        return None
    denied = set(deny or ())
    for each in denied:
        if not _is_network(each):
            raise refused("denyOut", f"{each[:60]!r} is no address and no network")
    is_closed = allow_internet is False or bool(denied & _EVERYTHING)
    allowed = list(dict.fromkeys(allow or ()))
    if not is_closed:
        _check_open(allowed, denied)
        return _OPEN
    if EVERYWHERE in allowed:
        return _OPEN
    return allowed or _NONE


def _check_open(allowed: Sequence[str], denied: set[str]) -> None:
    if not all(map(_is_network, allowed)):
        raise refused("allowOut", _NEEDS_ALL)
    if denied:
        raise refused(
            "denyOut",
            "a network cannot be open without these; deny 0.0.0.0/0, and list in allowOut what is "
            "allowed",
        )


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def check_egress(network: bodies.Network | bodies.NetworkUpdate) -> None:
    """Raise the 400 for what no policy of ours has."""
    bodies.check_absent(network, "rules", "egress_proxy", "dns_servers")


async def update(visit: Visit) -> None:
    """`PUT /sandboxes/{id}/network`: what is not said is open."""
    request = visit.request
    body = await bodies.read(request, bodies.NetworkUpdate)
    check_egress(body)
    policy = policy_of(body.allow_internet_access, body.allow_out, body.deny_out)
    sandbox = await existing(visit)
    await sandbox.set_network(_OPEN if policy is None else policy)
    await empty(request)
