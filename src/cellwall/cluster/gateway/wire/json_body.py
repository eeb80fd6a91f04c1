"""A body that is one JSON object, where a gateway itself reads it.

The invariant: no name comes twice, so no reader of the same body sees another value.
"""

from __future__ import annotations

import json


def object_of(body: bytes) -> dict[str, object]:
    """Return a JSON object. Raises ValueError for anything else, and for a name that comes twice.

    SECURITY: of a name that comes twice a node might take the other value.
    """
    try:
        found = json.loads(body, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found
