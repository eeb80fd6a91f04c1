"""One base is made for all kept sandboxes of a lineage, and again after one that failed."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.model.errors import CapacityError, CellwallError, HostUnsupported
from cellwall.runtimes.jail.stored.kept_base import KeptBase
from cellwall.runtimes.jail.stored.kept_bases import KeptBases


def _base() -> KeptBase:
    files = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(2))
    return KeptBase("stored-one", {}, *files)


class _Sandbox:
    lineage = "one"
    spec = SimpleNamespace(sandbox_id="a")

    def __init__(self) -> None:
        self.told: list[object] = []

    def keep_base(self, base: KeptBase | None, why_not: str = "") -> None:
        self.told.append(why_not if base is None else base)


async def _given(bases: KeptBases) -> list[object]:
    sandbox: Any = _Sandbox()
    bases.give(sandbox, {"one"})
    await bases.wait_made(5)
    await asyncio.sleep(0)  # callbacks of a task run after it
    told: list[object] = sandbox.told
    return told


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (CapacityError("no room", retry_after_s=1.0), 2),
        (OSError(28, "no room"), 2),
        (HostUnsupported("ids", "no room", remedy="none"), 1),
    ],
)
def test_next_sandbox_has_it_made_again_where_that_may_help(error: Exception, tries: int) -> None:
    tried = 0
    made = _base()

    async def make(_sandbox: object) -> KeptBase:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise error
        return made

    async def body() -> None:
        bases = KeptBases(make, lambda work: asyncio.get_running_loop().create_task(work))
        (why,) = await _given(bases)
        assert "no room" in str(why)
        for _ in range(2):
            told = await _given(bases)
            assert told == ([why] if isinstance(error, HostUnsupported) else [made])
        assert tried == tries
        bases.close()
        if tries == 1:
            made.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(made.base)

    assert isinstance(error, (CellwallError, OSError))
    asyncio.run(body())
