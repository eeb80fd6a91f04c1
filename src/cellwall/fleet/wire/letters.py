"""Letters: the message with which a driver gives items, and the node's reply with results.

Items and results are encoded once, where they are made, and joined here. The invariant: a result
stays with its node until the driver has said that it has it, so that a lost reply loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cellwall.fleet.wire.items import Json, encoded

MOST_RESULTS = 50
"""Number of results in one reply."""
MOST_BYTES = 8 * 1024 * 1024
"""Bytes of results after which a reply takes no further one."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What a driver says to a node."""

    items: Sequence[bytes] = ()
    """Items, each as JSON."""
    want: int = 1
    """Number of results with which the reply need not wait any longer; 0: it waits for none."""
    linger_s: float = 0.0
    """Seconds for which the reply waits for more once there is one."""
    have: Sequence[str] = ()
    """Tickets whose results the driver has; the node forgets them."""
    expect: Sequence[str] = ()
    """Tickets that the driver has given and not heard of, after a doubt. The node names those that
    it does not know, and never takes them afterwards."""
    cancel: Sequence[str] = ()
    """Tickets whose results the driver's caller does not want any longer."""

    def encoded(self) -> bytes:
        """Return it as JSON."""
        head = encoded(
            {
                "want": self.want,
                "linger_s": self.linger_s,
                "have": list(self.have),
                "expect": list(self.expect),
                "cancel": list(self.cancel),
            }
        )
        return head[:-1] + b',"items":[' + b",".join(self.items) + b"]}"


def letter_of(data: bytes) -> Json:
    """Return the JSON of a letter."""
    found: Json = json.loads(data)
    return found


@dataclass(slots=True)
class Reply:
    """What a node answers."""

    results: list[Json] = field(default_factory=list)
    """Each with `id`, and `value` or `failure`."""
    refused: list[str] = field(default_factory=list)
    """Tickets of this letter that the node did not take: nothing of them has begun."""
    missing: list[str] = field(default_factory=list)
    """Tickets of `expect` that the node never had: nothing of them has begun, nor ever will."""


def reply(results: Iterable[bytes], refused: Sequence[str], missing: Sequence[str]) -> bytes:
    """Return a reply as JSON."""
    head = encoded({"refused": list(refused), "missing": list(missing)})
    return head[:-1] + b',"results":[' + b",".join(results) + b"]}"


def reply_of(data: bytes) -> Reply:
    """Return a reply from its JSON."""
    found: dict[str, Any] = json.loads(data)
    return Reply(found["results"], found["refused"], found["missing"])
