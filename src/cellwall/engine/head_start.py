"""Starts the processes of a first answer before the engine that gives it is imported.

Called by doors that answer once, before they import `engine.engine`; so nothing is imported here
that the start does not need. Not the start itself (`runtimes.registry.begin`). The invariant: it
decides nothing. The engine chooses the runtime of each request as ever, and ends what it does not
use.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cellwall.engine.templates.place import state_dir
from cellwall.model.errors import CellwallError
from cellwall.runtimes import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from cellwall.runtimes.base import AheadOfEngine

_OPERATORS = (
    "CELLWALL_RUNTIMES",
    "CELLWALL_LEAST_ISOLATION",
    "CELLWALL_DEFAULT_ISOLATION",
    "CELLWALL_TRUST",
)
"""Variables of `EngineSettings` by which another runtime than the fastest may be chosen."""
_CALLERS = ("runtime", "isolation", "trust", "image")
"""Options of a request by which it may be."""
_MORE = (
    *("collect", "artifacts", "into", "tools"),
    *("packages", "package", "volumes", "volume"),
)
"""Options that need more in a sandbox than the program."""


@contextmanager
def begun(options: Mapping[str, Any]) -> Iterator[AheadOfEngine | None]:
    """Begin for a program with these options, and end what no engine has taken over.

    None where another runtime may be chosen for it.
    """
    ahead = begin(options)
    try:
        yield ahead
    finally:
        if ahead is not None:
            ahead.close()


def begin(options: Mapping[str, Any]) -> AheadOfEngine | None:
    """Begin for a program with these options; None where another runtime may be chosen for it.

    The caller closes it, whatever happens.
    """
    if any(map(os.environ.get, _OPERATORS)) or any(map(options.get, _CALLERS)):
        return None
    return registry.begin(state_dir(), is_single=_is_single(options))


def _is_single(options: Mapping[str, Any]) -> bool:
    """Whether it is likely a Python program without anything beside it.

    A wrong guess costs time: the engine looks at the request itself (`oneshot.purpose_of`).
    """
    is_python = (options.get("language") or "python") == "python"
    is_forked = (options.get("start") or "fork") == "fork"
    is_named_so = str(options.get("file") or ".py").endswith((".py", "-"))
    return is_python and is_named_so and is_forked and not any(map(options.get, _MORE))


def go_on(ahead: AheadOfEngine, options: Mapping[str, Any]) -> None:
    """Go on for a program with these options; if its template is not built, end."""
    from cellwall.engine.templates.store import TemplateStore

    try:
        built = TemplateStore(state_dir()).find(str(options.get("template", "python")))
    except CellwallError:  # the request meets it, too
        built = None
    if built is None:
        ahead.close()
    else:
        ahead.go_on(built)
