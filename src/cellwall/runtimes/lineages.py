"""Lineages: the fork-server that a copy of a session has to come from, by name and by facts.

It goes with `copies`, the contract of runtimes that copy sandboxes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

STORED = "stored-"
"""Begins the name of a lineage of which only a stored base is left."""


def stored_lineage(base_digest: str, maps_digest: str) -> str:
    """Return the name of a lineage by the SHA-256 of its base and of the base's map."""
    digest = hashlib.sha256(f"{base_digest} {maps_digest}".encode())
    return STORED + digest.hexdigest()[:32]


class LineageFacts(NamedTuple):
    """What images of a lineage need besides themselves, to become sessions in another engine."""

    fingerprint: Mapping[str, str]
    """What has to be the same there."""
    base: int
    """Descriptor of the memory that the images were compared with."""
    maps: bytes
    """Where its parts lie."""
