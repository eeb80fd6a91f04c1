"""Pytest fixtures for users' tests: `run` and `sandbox`, available where cellwall is installed.

pytest loads this module in every session, so nothing of the engine is imported before a test asks
for it. `cellwall_options` is meant to be overridden.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cellwall import Execution, Sandbox


@pytest.fixture
def cellwall_options() -> dict[str, Any]:
    """Return options for `run` and `sandbox`, like `template` and `limits`; overridable."""
    return {}


@pytest.fixture
def run(cellwall_options: dict[str, Any]) -> Callable[..., Execution]:
    """Return `run(code, …)`: a program in a fresh sandbox of its own, like `cellwall.run`."""
    import cellwall

    return partial(cellwall.run, **cellwall_options)


@pytest.fixture
def sandbox(cellwall_options: dict[str, Any]) -> Iterator[Sandbox]:
    """Yield a sandbox of the test's own, destroyed at its end."""
    import cellwall

    with cellwall.Sandbox(**cellwall_options) as made:
        yield made
