"""The secrets that a request names: those that came with it, or names for the engine to look up.

Called by the routes of new work before anything begins. The invariant: a request to a node gets
values that a gateway gave for it, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server.core.errors import HttpError
from cellwall.server.core.request_context import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.model.secret import Secret

NEEDED = 428
"""Status by which a node asks its gateway for secrets."""


def secrets_of(names: Sequence[str]) -> list[str | Secret] | None:
    """Return what the engine takes as the secrets of the request under way; None: it has none.

    Raises HttpError 428 for those that a gateway has to give.
    """
    if not names:
        return None
    origin = ORIGIN.get()
    if origin is None or origin.lent is None:
        return [*names]
    given = {each.name: each for each in origin.lent}
    if any(name not in given for name in names):
        raise HttpError(
            NEEDED,
            "secrets_needed",
            f"secrets: this node was not given all of {', '.join(names)[:200]}",
            remedy="try again",
            extra={"names": [*names]},
        )
    return [given[name] for name in names]
