"""Origin of work: the facts of a request for work that goes on without the request.

Set by `guards` for each request; tasks that a request starts inherit it. The facts are small, so
that a program that runs for an hour does not keep its request's body.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellwall.model.secret import Secret


@dataclass(slots=True)
class Origin:
    """Facts of one request."""

    request_id: str
    tenant: str | None = None
    """The calling tenant, once it is known."""
    parameters: str = ""
    """SHA-256 of the request's parameters, in hexadecimal; empty while it is not known."""
    span: Any = None
    """The request's span, if traces are on."""
    execution_id: str | None = None
    """Id of the execution that was done for the request inside this process, if there was one."""
    ended_at: float | None = None
    """When the execution it asked for had ended, in seconds since the epoch."""
    offered_id: str = ""
    """Id that the execution or sandbox it asks for gets; empty: a fresh one. Only a listener that
    is there for such offers sets it, never a part of a request of ours or a foreign protocol's."""
    is_trial: bool = False
    """Whether nothing is to begin: what would is checked, and shown. Set as `offered_id` is."""
    lent: tuple[Secret, ...] | None = None
    """Secrets that came with it, which alone it may name; None: names are those of the store."""


ORIGIN: ContextVar[Origin | None] = ContextVar("cellwall_origin", default=None)
