"""Snapshots for synchronous programs: `Snapshots().list()`, on the engine of `Sandbox`."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from cellwall.embedded.on_engine import OnEngine

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.model.snapshot import Snapshot


class Snapshots(OnEngine):
    """The snapshots of this process's engine; `Sandbox.restore(…)` makes a sandbox of one."""

    def list(self) -> builtins.list[Snapshot]:
        """Return the snapshots, the oldest first."""

        async def work(engine: Engine) -> builtins.list[Snapshot]:
            return builtins.list(engine.copies.snapshots(""))

        return self._call(work)

    def get(self, wanted: str) -> Snapshot:
        """Return one of them, by its id or its name. Raises NotFound."""

        async def work(engine: Engine) -> Snapshot:
            return engine.copies.get(wanted, "")

        return self._call(work)

    def delete(self, wanted: str) -> None:
        """Delete one; sandboxes that were made of it live on. Raises NotFound."""

        async def work(engine: Engine) -> None:
            engine.copies.delete(wanted, "")

        self._call(work)
