"""Losses that gateways agree on: what this one has heard is noted, what is lost is taken up.

A node learns that it was heard only after the directory knows it, so a gateway that finds no trace
of a node there for longer than its fence can be sure that the node has ended itself. While the
directory is away nodes are told at once, and nothing is lost: a gateway that is silent in the
directory prevents every loss. So a gateway that has not entered tells no node anything. The
invariant: a gateway that tells of a loss has itself noted what it heard for longer than a fence
without a break.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cellwall.cluster.directory.connection import within
from cellwall.cluster.directory.roll import NameTaken
from cellwall.store.records.errors import StoreBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.cluster.directory.roll import Roll
    from cellwall.cluster.gateway.book import Book, Node

_MOST_EVERY_S = 1.0
_log = logging.getLogger("cellwall.gateway")


def away_after_s(fence_s: float) -> float:
    """Return the seconds without an answer after which the directory is away for a gateway."""
    return fence_s / 4


def fresh_s(fence_s: float) -> float:
    """Return the seconds for which a gateway that noted something surely waits for the directory.

    Less than `away_after_s`, and than the margin between a fence and a loss.
    """
    return min(fence_s / 5, 2.0)


class Losses:
    """See the module. `begin`, then `run`."""

    def __init__(self, book: Book, roll: Roll, fence_s: float, probe_s: float) -> None:
        """`book` hears of losses, and what it may tell nodes."""
        self._book = book
        self._roll = roll
        self._away_s = away_after_s(fence_s)
        self._every_s = min(probe_s, _MOST_EVERY_S)
        self._since_s: float | None = None
        """Since when the directory has answered without a break; None: it is away."""
        self._prevented: dict[str, str] = {}
        """The silent gateway for each loss that is not told, as it was logged."""
        self._overdue: list[str] = []
        self._has_said = self._has_entered = False
        book.has_directory, book.is_alone = True, False

    async def begin(self) -> None:
        """Wait until the lost names are known: no request may be answered before.

        Raises NameTaken, and StoreBroken if the directory cannot be used.
        """
        while not await self.agree():
            if not self._has_said:
                self._has_said = True
                _log.warning("directory: away; this gateway waits for it before it takes requests")
            await asyncio.sleep(self._every_s)

    async def run(self, on_taken: Callable[[], None]) -> None:
        """Agree for ever; `on_taken`: another gateway has this one's name."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self.agree()
            except NameTaken as error:
                _log.error("%s", error)
                self._book.is_alone = False  # the other one's notes are not this one's
                on_taken()
                return
            except StoreBroken as error:
                self._away(error)
            await asyncio.sleep(max(0.0, began_s + self._every_s - loop.time()))

    async def agree(self) -> bool:
        """Note and take up once; report whether the directory answered.

        Raises NameTaken, and StoreBroken if the directory cannot be used.
        """
        try:
            async with within(self._away_s, self._roll.drop):
                await self._note()
                await self._declare()
        except (NameTaken, StoreBroken):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was agreed
            self._away(error)
            return False
        return True

    def _away(self, error: Exception) -> None:
        self._roll.drop()
        if self._since_s is not None:
            _log.warning(
                "directory: away, so no loss is told: %s", str(error) or "no answer in time"
            )
        self._since_s, self._book.is_alone = None, self._has_entered

    async def _note(self) -> None:
        heard = {
            node: node.told
            for node in self._book.nodes
            if node.told is not None and node.told.beat != node.noted
        }
        found = await self._roll.note(
            [(told.name, str(node.links.address)) for node, told in heard.items()]
        )
        for name, why in found.lost.items():
            self._take_up(name, why)
        for node, told in heard.items():
            if node.name == told.name:
                node.noted = told.beat
        self._book.take_known(found.known)
        if self._since_s is None:
            self._since_s = asyncio.get_running_loop().time()
            _log.warning("directory: it answers; gateways agree on losses")
        self._has_entered, self._book.is_alone = True, False
        self._overdue = found.overdue

    async def _declare(self) -> None:
        """Tell of losses, if this gateway has watched for longer than a fence."""
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None or now_s - self._since_s <= self._book.lost_after_s:
            return
        for name in self._overdue:
            if self._book.may_return(name, now_s):
                continue
            prevents = await self._roll.declare(name)
            if prevents and self._prevented.get(name) != prevents:
                _log.warning(
                    "node %s: its loss is not told: gateway %s says nothing, and may hear it; "
                    "start that one again",
                    name,
                    prevents,
                )
            self._prevented[name] = prevents

    def _take_up(self, name: str, why: str) -> None:
        """Have everything of a lost name answered with its loss, here as everywhere."""
        if name in self._book.lost:
            return
        self._book.bury(name, why)
        self._prevented.pop(name, None)
        for node in self._book.nodes:
            if node.name == name:
                _forget(node, why)


def _forget(node: Node, why: str) -> None:
    """Cut a node off whose name is lost; if it still answers, it hears of its loss."""
    node.told, node.state, node.why, node.noted = None, "unknown", why, ""
    node.links.cut()
    node.turn()
