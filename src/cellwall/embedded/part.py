"""What every part of a synchronous sandbox is: a name whose calls are forwarded.

`commands`, `contexts`, `files` and `ports` are parts. Each call is handed to the engine's thread
by the sandbox's `Runner`. The invariant: nothing here touches the engine's objects from the
caller's thread, except to read plain facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cellwall.embedded import Runner
    from cellwall.engine.sandbox import AsyncSandbox

T = TypeVar("T")


class Part:
    """A part of a sandbox whose calls are forwarded."""

    def __init__(self, runner: Runner, sandbox: AsyncSandbox) -> None:
        """Made by `Sandbox`."""
        self._runner = runner
        self._inner = sandbox

    def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._runner.call(lambda _engine, _put: work())
