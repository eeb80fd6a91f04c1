"""Refusals of the interpreter: a status and a text, which is what its clients show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.seat import SandboxGone
from cellwall.model.errors import CellwallError, SandboxUnavailable
from cellwall.server.core.errors import headers_of, status_of

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.seat import Seat

    Handler = Callable[[Seat], Awaitable[None]]


def in_text(handler: Handler) -> Handler:
    """Return a handler that answers its errors as text."""

    async def handle(seat: Seat) -> None:
        try:
            await handler(seat)
        except (SandboxGone, SandboxUnavailable):
            raise SandboxGone(seat.sandbox.id) from None
        except CellwallError as error:
            if seat.request.has_answered:
                raise
            said = error.message if error.remedy is None else f"{error.message}; {error.remedy}"
            await seat.request.answer_bytes(
                said.encode("utf-8", "replace"),
                "text/plain; charset=utf-8",
                status_of(error),
                headers_of(error),
            )

    return handle
