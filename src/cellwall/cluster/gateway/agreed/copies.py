"""How many copies a request for forks asks for, which are counted before its node is asked.

Nothing else of such a body is read here, and it decides no way. The invariant: no number is
smaller here than the node's.
"""

from __future__ import annotations

from cellwall.cluster.gateway.wire.json_body import object_of
from cellwall.model.errors import UsageError
from cellwall.model.snapshot import MOST_FORKS


def copies_in(body: bytes) -> int:
    """Return the number of copies. Raises UsageError for what is none.

    SECURITY: a number in another form, which a node might take for one, is refused: it would not
    be counted.
    """
    try:
        number = object_of(body or b"{}").get("count", 1)
        number = 1 if number is None else number  # as E2B's door reads it
    except ValueError:
        raise UsageError("fork: the body is no JSON object", remedy="see /docs") from None
    if type(number) is not int or not 1 <= number <= MOST_FORKS:
        raise UsageError(
            f"fork: count is not a whole number from 1 to {MOST_FORKS}", remedy="see /docs"
        )
    return number
