"""Runtime registry: names of runtimes and the modules that create them, imported on use.

It is neither a plugin system nor a choice: the engine decides which runtime serves a request.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.runtimes.base import AheadOfEngine, Runtime

FACTORIES: dict[str, str] = {
    "jail": "cellwall.runtimes.jail.runtime:JailRuntime",
    "process": "cellwall.runtimes.process.runtime:ProcessRuntime",
    "gvisor": "cellwall.runtimes.gvisor.runtime:GvisorRuntime",
    "docker": "cellwall.runtimes.docker.runtime:DockerRuntime",
    "docker+runsc": "cellwall.runtimes.docker.runtime:DockerRunscRuntime",
}
"""Map of names to `module:callable`; the callable takes the state directory. Fastest first: a jail
is forked from a warm fork-server, a process starts an interpreter, gVisor starts a kernel, a
container is started by a daemon. Of the runtimes that meet a level the first is chosen."""


def begin(state_dir: Path, *, is_single: bool) -> AheadOfEngine | None:
    """Start processes of the fastest runtime ahead of an engine; None: they cannot be started.

    `is_single`: they are for a program whose purpose is likely to be `single_program`.
    """
    starting = import_module("cellwall.runtimes.jail.starting.head_start")
    return cast("AheadOfEngine | None", starting.begin(state_dir, is_single=is_single))


def create(name: str, state_dir: Path) -> Runtime:
    """Create the runtime called `name`; `UsageError` if the name is unknown."""
    target = FACTORIES.get(name)
    if target is None:
        raise UsageError(
            f"runtime: {name!r} is not known", remedy=f"known runtimes: {', '.join(FACTORIES)}"
        )
    module, _, attribute = target.partition(":")
    return cast("Runtime", getattr(import_module(module), attribute)(state_dir))
