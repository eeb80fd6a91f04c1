"""Embedded engine: `run` and `Sandbox` for synchronous programs, `arun` for asyncio ones.

It is not a second engine: each call is passed to one engine on one background thread, started on
first use and closed at exit (`arun` and `AsyncSandbox` use an engine on the caller's own event
loop, closed with that loop). Callbacks run in the caller's thread. The invariant: a forked child
never touches its parent's objects; it closes the inherited descriptors and starts its own engine.

What needs an event loop or an engine is imported on first use: a first `run` starts its fork-server
before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellwall.embedded.default import default as _default
from cellwall.embedded.default import default_runner
from cellwall.embedded.programs import arun, run

if TYPE_CHECKING:
    from cellwall.embedded.runner import Runner
    from cellwall.embedded.sandbox import Sandbox

__all__ = ["Runner", "Sandbox", "_default", "arun", "default_runner", "run"]

_HOMES = {"Runner": "cellwall.embedded.runner", "Sandbox": "cellwall.embedded.sandbox"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - module attributes are of any type
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module 'cellwall.embedded' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value
