"""Fixtures of the attack tests: the arena, one for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from arena import Arena


@pytest.fixture(scope="session")
def arena() -> Iterator[Arena]:
    """An engine of our own, with its fork-server started."""
    made = Arena()
    yield made
    made.close()
