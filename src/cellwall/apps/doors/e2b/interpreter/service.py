"""The interpreter's routes, over what it remembers of its contexts."""

from __future__ import annotations

from cellwall.apps.doors.e2b.interpreter.contexts import Contexts
from cellwall.apps.doors.e2b.interpreter.execute import Execute
from cellwall.apps.doors.e2b.interpreter.refusals import in_text
from cellwall.apps.doors.e2b.seat import SeatRoute


class Interpreter:
    """The interpreter of all sandboxes of one server."""

    def __init__(self) -> None:
        self._contexts = Contexts()

    def routes(self) -> list[SeatRoute]:
        """Return its routes."""
        contexts = self._contexts
        return [
            SeatRoute("POST", "/execute", in_text(Execute(contexts))),
            SeatRoute("GET", "/contexts", in_text(contexts.index)),
            SeatRoute("POST", "/contexts", in_text(contexts.create)),
            SeatRoute("POST", "/contexts/{context_id}/restart", in_text(contexts.restart)),
            SeatRoute("DELETE", "/contexts/{context_id}", in_text(contexts.remove)),
        ]
