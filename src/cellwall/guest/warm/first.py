"""Warming a fork-server that answers first: what a program needs, and nothing that pays with many.

Called in the fork-server in the place of `preload`. Sessions, rehearsals and init are not for it: a
worker imports init when a sandbox needs one. What is loaded here is what a program would load
itself, before it runs a line of its caller's (`own_modules`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cellwall.guest.context import deep_sources, program, tools  # noqa: F401 - loaded, not used
from cellwall.guest.context import main as context
from cellwall.guest.display import json_value, mime_bundles, tracebacks  # noqa: F401 - loaded only
from cellwall.guest.process import libc, processes, reseed  # noqa: F401 - two are loaded only
from cellwall.guest.warm import template_imports

if TYPE_CHECKING:
    from typing import Any


def warm(
    modules: list[str],
    environment: dict[str, str] | None = None,
    for_imports: dict[str, str] | None = None,
    *,
    is_rehearsed: bool = False,
) -> dict[str, Any]:
    """Do what `preload.warm` does, without rehearsals: there are none to repeat."""
    del is_rehearsed
    started = time.perf_counter()
    template_imports.take_on(environment)
    context.prepare()
    processes.settle()
    template_imports.bring(modules, for_imports or {})
    return template_imports.report(modules, started)


def recall() -> None:
    """Repeat nothing."""
