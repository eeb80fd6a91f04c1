"""A full queue and servers that are killed: FI-22, reduced (`make ledger` is the whole of it)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kit.server.rehearsal import rehearse


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_killed_with_a_full_queue_nothing_is_lost_or_run_twice(tmp_path: Path, seed: int) -> None:
    found = asyncio.run(rehearse(tmp_path, 600, random.Random(seed)))
    assert found.is_good, found
    # A fresh process grows by more than its items; with 10,000 of them it is below 4 KiB each.
    assert found.item_bytes <= 8192, found
