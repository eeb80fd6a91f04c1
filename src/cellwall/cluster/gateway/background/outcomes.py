"""Objects of programs that no node has: while they wait, and where they end without one.

Pure. They are those of a server (`server.executions.record`): made of what a node said that it
would show of the program. The invariant: a client cannot tell where an object came from.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cellwall.model.outcome import INTERRUPTED
from cellwall.server.core.errors import failure
from cellwall.server.executions.record import failed
from cellwall.server.executions.webhooks import ended_notice
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.cluster.directory.programs import Seen

WAITING = frozenset({"queued", "running"})
"""Statuses of what has not ended."""


def cancelled(shown: str) -> dict[str, Any]:
    """Return the object of a program that was cancelled before it began."""
    return {
        **json.loads(shown),
        "status": "error",
        "verdict": "cancelled",
        "exit_status": INTERRUPTED,
        "error": "cancelled before it ran",
    }


def failed_by(shown: str, error: Exception, request_id: str) -> dict[str, Any]:
    """Return the object of a program that an error of ours has ended."""
    return {**json.loads(shown), **failed(failure(error, request_id))}


def unread(shown: str) -> dict[str, Any]:
    """Return what can be told of an end whose object is too long to be read."""
    return {**json.loads(shown), "status": None, "verdict": None}


def object_of(seen: Seen) -> dict[str, Any]:
    """Return the object of a program as far as the directory knows it."""
    if seen.answer is not None:
        return dict(json.loads(seen.answer))
    status = "queued" if seen.state == "queued" else "running"
    return {**json.loads(seen.shown), "status": status}


def notice_of(answer: dict[str, Any]) -> str:
    """Return the body of the notice of an end."""
    return one_line(ended_notice(answer))


def last_event(answer: dict[str, Any], form: str) -> bytes:
    """Return the stream of a program of which nothing but the end is known, as a server frames it.

    `form`: `ndjson` or `sse`.
    """
    found = answer.get("failure")
    event = {"seq": 1, "type": "end", "verdict": answer["verdict"], "outcome": None}
    line = one_line({**event, "failure": found})
    if form == "ndjson":
        return line.encode() + b"\n"
    return b"id: 1\nevent: end\ndata: %s\n\n" % line.encode()
