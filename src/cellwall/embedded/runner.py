"""One event loop with one engine on one thread, imported and made there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cellwall.surface.sync.loop_thread import LoopThread

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.runtimes.base import AheadOfEngine


class Runner(LoopThread["Engine"]):
    """One event loop with one engine on one thread."""

    def __init__(self, make_engine: Callable[[], Engine] | None = None) -> None:
        """Start the thread; the engine is created there on first use."""
        super().__init__(make_engine or _engine)

    @classmethod
    def that_answers_first(cls, head_start: AheadOfEngine | None) -> Runner:
        """Return the runner of a process that may need only one answer."""
        return cls(partial(_engine, answers_first=True, head_start=head_start))

    def abandon(self) -> None:
        """Forget the engine in a forked child; the thread exists in the parent only."""
        if self._subject is not None:
            self._subject.abandon()


def _engine(*, answers_first: bool = False, head_start: AheadOfEngine | None = None) -> Engine:
    from cellwall.engine import engine  # on the loop's thread, while the caller's waits

    return engine.Engine(answers_first=answers_first, head_start=head_start)
