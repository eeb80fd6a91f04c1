"""What a request names that is not on this node: a refusal by which a gateway finds the right one.

Raised before anything begins, and only by a server that is a node. The invariant: what is said is
the kind and the name that the caller named, and nothing of what is here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellwall.server.core.errors import HttpError, status_of

if TYPE_CHECKING:
    from cellwall.model.errors import CellwallError

LACKS = "cellwall-lacks"
"""Header of the refusal, which no client sees: the kind and the name, as `volume:data`."""
_FORM = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def lacking(error: CellwallError, kind: str, name: str) -> HttpError:
    """Return the refusal of a request whose `error` a server alone would raise.

    SECURITY: the name is a caller's; what can be the name of nothing is not said in a header.
    """
    return HttpError(
        status_of(error),
        error.code,
        error.message,
        remedy=error.remedy,
        headers={LACKS: f"{kind}:{name}"} if _FORM.fullmatch(name) else {},
    )
