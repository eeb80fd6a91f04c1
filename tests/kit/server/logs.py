"""The log of a server, as tests read it.

A thread of the server writes the log, so the record of a request may come after its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kit.waiting import wait_until

Record = dict[str, Any]


class Logging(Protocol):
    """A server, a node or a gateway of a test."""

    @property
    def log(self) -> Path: ...


def log_records(server: Logging) -> list[Record]:
    """Return what the log has so far; each line of it has to be JSON."""
    whole = server.log.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def logged(server: Logging, is_wanted: Callable[[Record], bool], what: str = "record") -> Record:
    """Return the first record that is wanted, as soon as the log has it."""
    found: list[Record] = []

    def has_come() -> bool:
        found[:] = [each for each in log_records(server) if is_wanted(each)][:1]
        return bool(found)

    wait_until(has_come, f"a {what} in {server.log}")
    return found[0]


def metrics_address(server: Logging) -> str:
    """Return the address of a server's metrics, which its log tells."""
    return str(logged(server, lambda each: each["event"] == "metrics", "metrics")["address"])
