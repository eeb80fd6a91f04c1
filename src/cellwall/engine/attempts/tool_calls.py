"""Tool calls of one execution: frames from the guest in, answers of the caller's functions out.

Used by `attempt`. `surface.tools.calls` interprets a call; this module carries it over the channel
and enforces again the bounds that init enforces, because an init may lie. The invariant: after
`end` no function of the caller is awaited for this execution, and nothing more is sent inside.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.surface.shared.tasks import Tasks
from cellwall.surface.tools.calls import Answer, refusal
from cellwall.surface.tools.tools import Incoming

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.runtimes.channel.channel import GuestChannel
    from cellwall.surface.tools.tools import Offer

_GRACE_S = 1.0
"""Seconds for cancelled functions to clean up, before the answer goes out without them."""
_MOST_NAME_CHARACTERS = 64

Tell = Callable[["Mapping[str, Any]"], None]


@dataclass(slots=True)
class _Call:
    """One call that waits for its answer."""

    number: int
    tool: str
    body_bytes: int
    digest: str
    began_s: float
    task: asyncio.Task[None] | None = None


class Calls:
    """The tool calls of one execution; see the module."""

    def __init__(self, box: Offer, channel: GuestChannel, tell: Tell) -> None:
        """`tell` gets the data of each `tool_call` event, when the call is over."""
        self._box = box
        self._handler = box.handler()
        self._channel = channel
        self._tell = tell
        self._tasks = Tasks()
        # Frames are read outside of any caller's context; functions run in the context of their
        # caller.
        self._context = contextvars.copy_context()
        self._waiting: dict[int, _Call] = {}
        self._last = 0

    def begin(self, execution: int, header: Mapping[str, Any], body: bytes) -> None:
        """Start a call; a call that init should have refused is a `FrameError`."""
        number = header["call"]
        if number != self._last + 1 or number > self._box.calls:
            raise FrameError(f"call {number}: not the next one, or above the limit")
        if len(self._waiting) >= self._box.at_once:
            raise FrameError(f"call {number}: more than {self._box.at_once} at once")
        self._last = number
        digest = hashlib.sha256(body).hexdigest()
        tool = header["tool"][:_MOST_NAME_CHARACTERS]
        call = _Call(number, tool, len(body), digest, time.perf_counter())
        self._waiting[number] = call
        work = self._work(execution, call, body)
        call.task = self._context.run(self._tasks.spawn, work)

    def drop(self, header: Mapping[str, Any]) -> None:
        """Cancel a call whose caller inside no longer waits."""
        call = self._waiting.get(header["call"])
        if call is not None:
            self._give_up(call)

    async def _work(self, execution: int, call: _Call, body: bytes) -> None:
        read = partial(self._channel.take_apart, body)
        answer = await self._handler.answer(Incoming(call.number, call.tool, len(body), read))
        # Keep the call's place until its answer is sent: a program that reads no answers gets no
        # more.
        try:
            await self._channel.wait_writable()
        except ChannelLost:
            return
        if self._waiting.pop(call.number, None) is None:
            return
        fields = {"op": "answer", "id": execution, "call": call.number, "ok": answer.is_ok}
        self._channel.send(fields, answer.body)
        self._report(call, answer)

    def _give_up(self, call: _Call) -> None:
        del self._waiting[call.number]
        # The task keeps its last frame, which refers to the call: a cycle that holds an answer.
        task, call.task = call.task, None
        if task is not None:
            task.cancel()
        self._report(call, refusal("cancelled", ""))

    def _report(self, call: _Call, answer: Answer) -> None:
        self._tell(
            {
                "call": call.number,
                "tool": call.tool,
                "decision": answer.decision,
                "error": answer.error or None,
                "arguments_bytes": call.body_bytes,
                "arguments_sha256": call.digest,
                "result_bytes": len(answer.body) if answer.is_ok else 0,
                "duration_ms": round((time.perf_counter() - call.began_s) * 1000, 3),
            }
        )

    def end(self) -> None:
        """Cancel the calls under way; idempotent."""
        for call in list(self._waiting.values()):
            self._give_up(call)

    async def wait_ended(self) -> None:
        """Return when every cancelled function has cleaned up, or after a grace period."""
        if len(self._tasks):
            try:
                async with asyncio.timeout(_GRACE_S):
                    await self._tasks.wait_empty()
            except TimeoutError:
                return
