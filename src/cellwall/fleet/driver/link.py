"""Link: what the driver needs of a way to a node, whatever carries it.

`cluster` makes links of Ray; tests make others. The invariant: `NodeGone` is raised only where the
node's process is known to have ended, `NoAnswer` wherever that is not known.
"""

from __future__ import annotations

from typing import Protocol


class NoAnswer(Exception):
    """A call failed; whether it has reached the node is unknown."""


class NodeGone(NoAnswer):
    """The node's process has ended, and the machine below it is there."""


class Link(Protocol):
    """The way to one node."""

    async def open(self, message: bytes) -> bytes:
        """Have it start; see `NodeActor.open`."""

    async def ping(self, message: bytes) -> bytes:
        """Ask whether it is there."""

    async def exchange(self, message: bytes) -> bytes:
        """Give it items and take results."""

    async def close(self, message: bytes) -> bytes:
        """Have it end everything."""

    async def begun(self, ledger: str) -> set[str] | None:
        """Return what the node that has ended had begun, by its ledger; None if that is lost."""

    async def drop(self) -> None:
        """Have the process ended, should it be there."""
