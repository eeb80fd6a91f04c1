"""How many copies a request for forks asks for, which are counted before its node is asked.

The only thing that a gateway reads in a body, and it decides no way. The invariant: no number is
smaller here than the node's.
"""

from __future__ import annotations

import json

from cellwall.model.errors import UsageError
from cellwall.model.snapshot import MOST_FORKS


def copies_in(body: bytes) -> int:
    """Return the number of copies. Raises UsageError for what is none.

    SECURITY: a number in another form, which a node might take for one, is refused: it would not
    be counted.
    """
    try:
        value = json.loads(body or b"{}", object_pairs_hook=_without_repeats)
        number = value.get("count", 1)
        number = 1 if number is None else number  # as E2B's door reads it
    except (ValueError, AttributeError, RecursionError):
        raise UsageError("fork: the body is no JSON object", remedy="see /docs") from None
    if type(number) is not int or not 1 <= number <= MOST_FORKS:
        raise UsageError(
            f"fork: count is not a whole number from 1 to {MOST_FORKS}", remedy="see /docs"
        )
    return number


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object. Raises ValueError if it has a name twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found
