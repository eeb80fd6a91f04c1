"""The image of one hibernated sandbox on disk, where it outlives its engine (design/0051).

`hibernation` has one for its sandbox; the files are `durable`'s. The invariant: it is there from
the moment at which its sandbox gives its processes up until a fresh sandbox has become the session,
and not a moment longer, so that what a sandbox did after it was written is never undone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.engine.state.asleep import Asleep
from cellwall.model.errors import CapacityError, CellwallError

if TYPE_CHECKING:
    from cellwall.engine.parts.pausing import Standstill
    from cellwall.engine.state.disk_budget import SessionBudget
    from cellwall.engine.state.durable import DurableSnapshots
    from cellwall.engine.state.snapshot_header import Header

_log = logging.getLogger("cellwall.engine")


class StoredImage:
    """One of them; its header says what is in it, and what is known of its sandbox."""

    def __init__(
        self, durable: DurableSnapshots, header: Header, budget: SessionBudget | None = None
    ) -> None:
        """`budget`: what its files take, if nothing that is loaded takes it."""
        self._durable = durable
        self._turn = asyncio.Lock()
        self._is_there = True
        self.header = header
        self.budget = budget

    @property
    def asleep(self) -> Asleep:
        """What is known of its sandbox."""
        return Asleep.parse(self.header.asleep or {})

    @property
    def image_bytes(self) -> int:
        """Bytes of its memory and its files."""
        return int(self.header.image["memory_bytes"]) + int(self.header.image["files_bytes"])

    @property
    def is_sealed(self) -> bool:
        """Whether no disk may have it as it is."""
        return self._durable.folder is None

    def takes_on(self, budget: SessionBudget) -> SessionBudget:
        """Hold the bytes of what was loaded; return the budget of that."""
        self.budget = budget
        return self._durable.no_budget()

    async def settle(self) -> None:
        """Return when it is there after a loss of power, too; what the disk refuses is logged."""
        try:
            await self._durable.synchronise()
        except CapacityError as error:
            _log.warning("sandbox %s: %s", self.header.id, error)

    async def note(self, stand: Standstill, ends_at: float) -> None:
        """Keep other times; `ends_at`: when its pauses are over. Raises CapacityError, Conflict."""
        times = {**(self.header.asleep or {}), **stand._asdict()}
        await self._change(asleep=times, expires_at=ends_at)

    async def forget_session(self) -> None:
        """Have only its files from now on. Raises CapacityError, Conflict."""
        image = {**self.header.image, "memory_bytes": 0}
        parts = {"archive": self.header.parts["archive"]}
        await self._change(image=image, parts=parts)

    async def _change(self, **changes: Any) -> None:  # noqa: ANN401 - fields of `Header`
        async with self._turn:
            if not self._is_there:
                return
            try:
                self.header = await self._durable.change(replace(self.header, **changes))
            except CellwallError:
                if self._is_there:  # else it was closed meanwhile
                    raise

    async def retire(self) -> None:
        """Have it gone, also after a loss of power: its sandbox has come back.

        Raises SandboxBroken if it cannot be removed: then the sandbox must not go on.
        """
        async with self._turn:
            await self._durable.retire(self.header.id)
            self._is_there = False

    def remove(self) -> None:
        """Have it gone: its sandbox has ended."""
        if self._is_there:
            self._is_there = False
            self._durable.remove(self.header.id)
        if self.budget is not None:
            self.budget.give_back()
