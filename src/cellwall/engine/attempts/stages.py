"""Stages: the caller's view of one execution with several stages: compile, then run.

Each stage is an attempt, in a sandbox of its own or in a living one. The invariant: a cancellation
takes effect whenever it comes, also between two stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.execution import Event

if TYPE_CHECKING:
    from cellwall.engine.attempts.attempt import Handle, OnEvent, OnStart
    from cellwall.model.execution import Execution


class Stages:
    """Handle of the caller: it is given out with the first attempt and follows the later ones."""

    def __init__(self, on_start: OnStart | None) -> None:
        """`on_start` is called once, when the first code has been handed over."""
        self._on_start = on_start
        self._attempt: Handle | None = None
        self._is_cancelled = False
        self._is_paused = False

    def begin(self, attempt: Handle) -> None:
        """Follow the next attempt, which has just begun."""
        self._attempt = attempt
        on_start, self._on_start = self._on_start, None
        if on_start is not None:
            on_start(self)
        if self._is_cancelled:
            attempt.cancel()
        elif self._is_paused:
            attempt.pause()

    def cancel(self) -> None:
        """End the execution at its caller's request; idempotent."""
        self._is_cancelled = True
        if self._attempt is not None:
            self._attempt.cancel()

    def pause(self) -> None:
        """Stop reading the sandbox's output until `resume`; idempotent."""
        self._is_paused = True
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        """Undo `pause`; idempotent."""
        self._is_paused = False
        if self._attempt is not None:
            self._attempt.resume()


def report(execution: Execution, on_event: OnEvent | None) -> None:
    """Send the listener the events of an execution that ended with its compile stage."""
    if on_event is None:
        return
    events = []
    if execution.stderr:
        events.append(Event(1, "stderr", text=execution.stderr))
    if execution.error is not None:
        events.append(Event(len(events) + 1, "error", error=execution.error))
    events.append(Event(len(events) + 1, "end", outcome=execution.outcome))
    for event in events:
        on_event(event)
