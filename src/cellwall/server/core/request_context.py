"""Where something comes from: what a request leaves to the work that goes on without it.

Set by `guards` for each request; tasks that a request starts inherit it. Small, so that a program
that runs for an hour does not keep its request's body.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Origin:
    """One request."""

    request_id: str
    tenant: str | None = None
    """Who asks, once that is known."""
    parameters: str = ""
    """SHA-256 of what was asked for, in hexadecimal; "" as long as that is not known."""
    span: Any = None
    """Its span, while traces are kept."""
    execution_id: str | None = None
    """The execution that was done for it inside this process, if there was one."""
    ended_at: float | None = None
    """When the execution it asked for had ended, in seconds since the epoch."""


ORIGIN: ContextVar[Origin | None] = ContextVar("cellwall_origin", default=None)
