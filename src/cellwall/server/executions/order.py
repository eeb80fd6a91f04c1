"""An execution that was asked for: checked, and ready to be done now or later.

Values only; made by `oneshots` and by the routes of sandboxes, done by `registry`. The
invariant: nothing of it has run. What is written down of it is enough to make it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellwall.engine.attempts.attempt import BeforeCode, OnEvent, OnStart
    from cellwall.engine.scheduling.admission import Cost
    from cellwall.model.execution import Execution
    from cellwall.server.executions.idempotency import Use
    from cellwall.server.executions.remote_tools import RemoteTools

    Work = Callable[[OnEvent, OnStart, BeforeCode | None], Awaitable[Execution]]


@dataclass(frozen=True, slots=True)
class Order:
    """One execution that was asked for."""

    owner: str
    request_id: str
    asked: Mapping[str, Any]
    """What is shown while there is no answer (template, language, sandbox_id, clipped, scan), and
    what its body does not say: `is_streamed`, `key_id`."""
    work: Work
    """Does it: awaits `before_code`, if any, when a sandbox is there and before its code runs."""
    on_disconnect: str = "cancel"
    cost: Cost | None = None
    """What it takes of the machine; None for a cell, whose sandbox has its place already."""
    body: bytes | None = None
    """What was asked for, as JSON of `ExecuteBody`; None: it cannot wait for another server."""
    replay: Use | None = None
    """The use of an idempotency key that becomes durable with it."""
    tools: RemoteTools | None = None
    """Its client's tools, which its work knows, too."""
    created_at: float = field(default=0.0)

    @property
    def outlives(self) -> bool:
        """Whether it is done later if this server ends before its turn."""
        return self.body is not None and self.on_disconnect == "detach"
