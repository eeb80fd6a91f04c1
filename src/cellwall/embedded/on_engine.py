"""What the library's synchronous parts besides sandboxes share: calls passed to the engine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cellwall.embedded import Runner
    from cellwall.engine.engine import Engine

T = TypeVar("T")


class OnEngine:
    """A part whose calls run on the engine that `run` and `Sandbox` use."""

    def __init__(self, runner: Runner | None = None) -> None:
        """`runner` is for tests and embedders with an engine of their own."""
        self._runner = runner

    def _call(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        from cellwall import embedded

        runner = self._runner or embedded.default_runner()
        return runner.call(lambda engine, _put: work(engine))
