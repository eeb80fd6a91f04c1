"""Execution of a cell: its events as lines while they come.

The invariant: a client that leaves interrupts its cell, so that the next one does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.e2b.interpreter import results, variables
from cellwall.apps.doors.e2b.interpreter.contexts import Context, Contexts, body_of, text
from cellwall.model.errors import CellwallError, SandboxUnavailable, UsageError
from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.model.execution import Event

_QUIET_S = 5.0
"""Seconds after which a quiet stream shows that it is alive."""
_PIECES_S = 0.1
"""Seconds for which the begin of a line waits for its rest: R writes one line in several pieces."""
_LONGEST_S = 86_400.0
"""Time limit of a cell, which its client ends by leaving; the operator's ceiling may be lower."""
_MOST_BODY_BYTES = 8 * 1024 * 1024


class Execute:
    """The route, over the contexts."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    async def __call__(self, seat: Seat) -> None:
        """Answer `POST /execute`."""
        body = await body_of(seat, _MOST_BODY_BYTES)
        code = text(body, "code")
        if code is None:
            raise UsageError("code: it is missing")
        wanted = variables.of(body.get("env_vars"))
        context = await self._contexts.of(
            seat.sandbox, text(body, "context_id"), text(body, "language")
        )
        await _Run(seat, context).serve(code, wanted)


class _Run:
    """One execution."""

    def __init__(self, seat: Seat, context: Context) -> None:
        self._seat = seat
        self._request = seat.request
        self._context = context
        self._begun: dict[str, Any] | None = None
        """Output whose line has not ended, and that was not said yet."""
        self._begun_at = 0.0

    async def serve(self, code: str, wanted: dict[str, str]) -> None:
        await self._request.start(200, "application/x-ndjson", {"cache-control": "no-store"})
        try:
            async with contextlib.aclosing(self._values(code, wanted)) as values:
                while (value := await self._next(values)) is not None:
                    await self._take(value)
        except SandboxUnavailable:
            # a client learns that its sandbox is gone from a stream that breaks off
            self._request.abort()
            return
        except CellwallError as error:
            await self._say(results.error(type(error).__name__, str(error)))
        await self._say(results.END)
        await self._request.end()

    async def _values(
        self, code: str, wanted: dict[str, str]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run the code in its turn; yield what clients are told."""
        sandbox, context = self._seat.sandbox, self._context
        reading = results.Reading()
        async with context.turn, variables.given(sandbox, context, wanted):
            context.count += 1
            yield results.began(context.count)
            events = sandbox.stream(code, context.language, context.name, timeout=_LONGEST_S)
            async with contextlib.aclosing(events):
                async for event in events:
                    await self._check(event)
                    value = reading.of(event)
                    if value is not None:
                        yield value

    async def _next(self, values: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any] | None:
        """Return the next value; before the end, say what is left. Raises ClientGone."""
        coming = asyncio.ensure_future(_after(values))
        try:
            while not await self._request.wait(coming, self._patience_s()):
                if not await self._say_begun():
                    await self._say(results.KEEPALIVE)
            if coming.exception() is not None or coming.result() is None:
                await self._say_begun()
        except BaseException:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            raise
        return coming.result()

    def _patience_s(self) -> float:
        if self._begun is None:
            return _QUIET_S
        return max(0.0, self._begun_at + _PIECES_S - time.monotonic())

    async def _take(self, value: dict[str, Any]) -> None:
        """Say a value, or keep it until its line ends."""
        begun = self._begun
        if begun is not None and begun["type"] == value["type"]:
            value = {**begun, "text": begun["text"] + value["text"]}
            self._begun = None
        await self._say_begun()
        if value["type"] not in ("stdout", "stderr") or value["text"].endswith("\n"):
            await self._say(value)
            return
        self._begun = value
        if begun is None or begun["type"] != value["type"]:
            self._begun_at = time.monotonic()
        elif not self._patience_s():
            await self._say_begun()

    async def _say_begun(self) -> bool:
        """Say what was kept; return whether there was something."""
        begun, self._begun = self._begun, None
        if begun is not None:
            await self._say(begun)
        return begun is not None

    async def _check(self, event: Event) -> None:
        """Raise SandboxUnavailable if the end of the sandbox was the end of the execution."""
        if event.outcome is None:
            return
        if event.outcome.verdict in (Verdict.SANDBOX_ERROR, Verdict.CANCELLED):
            await self._seat.sandbox.refresh()
            if self._seat.sandbox.status == "stopped":
                raise SandboxUnavailable("sandbox: it has ended")

    async def _say(self, value: Any) -> None:  # noqa: ANN401 - JSON
        await self._request.write(results.line(value))


async def _after(values: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any] | None:
    return await anext(values, None)
