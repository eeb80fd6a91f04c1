"""An execution as asked for: checked, and ready to be done now or later.

Orders are values, made by `oneshots` and by the routes of sandboxes, and run by `registry`. The
invariant: no part of an order has run; its stored fields are enough to make it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
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
    """Fields shown while there is no answer (template, language, sandbox_id, clipped, scan), and
    facts that the body does not have: `is_streamed`, `key_id`."""
    work: Work
    """Does the order; awaits `before_code`, if given, once a sandbox is there and before code
    runs."""
    on_disconnect: str = "cancel"
    cost: Cost | None = None
    """Resources the order takes of the machine; None for a cell, whose sandbox has its place
    already."""
    body: bytes | None = None
    """The request as JSON of `ExecuteBody`; None: the order cannot wait for another server."""
    replay: Use | None = None
    """Use of the idempotency key, which becomes durable with the acceptance."""
    tools: RemoteTools | None = None
    """The client's tools, the same object that `work` uses."""
    offered_id: str = ""
    """Id that it gets, as `Origin.offered_id`; empty: a fresh one."""

    @property
    def outlives(self) -> bool:
        """Whether the order is done later if this server ends before its turn."""
        return self.body is not None and self.on_disconnect == "detach"
