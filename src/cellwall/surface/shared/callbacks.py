"""Callbacks of a run: their types, and one callback that serves all three.

Called by everything that runs something for a caller.
"""

from __future__ import annotations

from collections.abc import Callable

from cellwall.model.execution import Event

OnEvent = Callable[[Event], None]
OnText = Callable[[str], None]
OnProgress = Callable[[int, int | None], None]
"""Called with the bytes so far and the bytes in total; None where the total is unknown."""


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
