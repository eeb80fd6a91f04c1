"""Callbacks of a run: what they are, and how the three of them become one.

Called by everything that runs something for a caller.
"""

from __future__ import annotations

from collections.abc import Callable

from cellwall.model.execution import Event

OnEvent = Callable[[Event], None]
OnText = Callable[[str], None]
OnProgress = Callable[[int, int | None], None]
"""Called with the bytes so far and those there are in all; None where nobody knows."""


def by_stream(
    on_stdout: OnText | None, on_stderr: OnText | None, on_event: OnEvent | None = None
) -> OnEvent | None:
    """Return one event callback that serves all three, or None if there is none."""
    if on_stdout is None and on_stderr is None:
        return on_event

    def deliver(event: Event) -> None:
        if on_event is not None:
            on_event(event)
        if event.kind == "stdout" and on_stdout is not None:
            on_stdout(event.text or "")
        elif event.kind == "stderr" and on_stderr is not None:
            on_stderr(event.text or "")

    return deliver
