"""Calls to tools whose functions are in the client's process; the calls wait here for an answer.

The engine brings a call (`answer`), a stream to the client shows it (`follow`), a request of the
client ends it (`take`). Routes check permissions; schema and approval are the client's matter. The
invariants: memory holds the arguments and the result of at most `at_once` calls, none of them goes
to a disk; a call ends once: by its answer, by its timeout, because the client is absent, or with
its execution.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import Conflict, NotFound, UsageError
from cellwall.server.core.errors import HttpError
from cellwall.surface.tools.calls import Answer, above, arguments_of, refusal
from cellwall.surface.tools.tools import Offer, check_name

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.schemas.tools import ToolsBody
    from cellwall.surface.tools.tools import Answering, Incoming

_MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Bytes of arguments, and of results, that one execution may keep in memory."""
_GONE = "the client that offers the tools is not connected"


@dataclass(eq=False, slots=True)
class _Waiting:
    """A tool call without an answer yet."""

    number: int
    tool: str
    size_bytes: int
    read: Callable[[], object]
    """Parses the arguments, which fit the limit; as objects they would take many times their
    bytes."""
    answer: asyncio.Future[Answer]

    def shown(self) -> dict[str, Any]:
        return {
            "type": "call",
            "call": self.number,
            "tool": self.tool,
            "arguments": self.read(),
            "arguments_bytes": self.size_bytes,
        }


class RemoteTools(Offer):
    """The tools of one execution's client, and the calls that wait for it."""

    def __init__(self, asked: ToolsBody, settings: ServerSettings) -> None:
        """Raises `UsageError` when a name is invalid or the sizes are above the limit."""
        self._most_bytes = {
            check_name(name): each.max_bytes for name, each in asked.functions.items()
        }
        self.at_once, self.calls = asked.at_once, asked.calls
        if self.at_once * max(self._most_bytes.values()) > _MOST_WAITING_BYTES:
            raise UsageError(
                f"tools: at_once times max_bytes is above {_MOST_WAITING_BYTES} bytes",
                remedy="ask for fewer calls at once, or for smaller ones",
            )
        self.manifest = {
            "functions": {
                name: {"head": each.head, "doc": each.doc, "bytes": each.max_bytes}
                for name, each in asked.functions.items()
            },
            "at_once": self.at_once,
            "in_all": self.calls,
        }
        self._wait_s, self._absence_s = settings.tool_wait_s, settings.tool_absence_s
        self._waiting: dict[int, _Waiting] = {}
        self._actors: dict[int, str] = {}
        self._last = 0
        self._listeners = 0
        self._absence: asyncio.TimerHandle | None = None
        self._news: list[asyncio.Future[None]] = []
        self._is_over = False

    # -- the engine's side -----------------------------------------------------------------

    def handler(self) -> Answering:
        """Return the object that answers the calls: this one."""
        return self

    async def answer(self, call: Incoming) -> Answer:
        """Show a call to the client and wait for its answer."""
        self._last = call.number
        most_bytes = self._most_bytes.get(call.tool)
        if most_bytes is None:
            return refusal("unknown", "there is no such tool")
        if (oversize := above(call.size_bytes, most_bytes)) is not None:
            return refusal("too_large", oversize)
        try:
            arguments_of(call.read)
        except ValueError as error:
            return refusal("invalid", str(error))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(call.number, call.tool, call.size_bytes, call.read, future)
        self._waiting[call.number] = waiting
        self._watch_absence()
        self._tell()
        try:
            async with asyncio.timeout(self._wait_s):
                return await future
        except TimeoutError:
            return refusal("timeout", f"no answer within {self._wait_s:g} s")
        finally:
            self._waiting.pop(call.number, None)
            self._watch_absence()
            self._tell()

    def actor(self, number: int) -> str:
        """Return the id of the key that answered a call, once; without an answer "" instead."""
        return self._actors.pop(number, "")

    def end(self) -> None:
        """End the streams: the execution is over and no further call comes. Idempotent."""
        self._is_over = True
        if self._absence is not None:
            self._absence.cancel()
            self._absence = None
        self._tell()

    # -- the client's side -----------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Count a connected client while the block lasts."""
        self._listeners += 1
        self._watch_absence()
        try:
            yield
        finally:
            self._listeners -= 1
            self._watch_absence()

    async def follow(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield every waiting call, then new calls, and a notice of each call given up."""
        shown: dict[int, _Waiting] = {}
        while True:
            for number, call in list(self._waiting.items()):
                if number not in shown:
                    shown[number] = call
                    yield call.shown()
            for number in shown.keys() - self._waiting.keys():
                if not _is_answered(shown.pop(number)):
                    yield {"type": "call_dropped", "call": number}
            if self._is_over:
                yield {"type": "end"}
                return
            if self._waiting.keys() == shown.keys():
                await self._arrival()

    def take(self, number: int, answer: Answer, actor: str) -> None:
        """End a call with its answer. Raises `NotFound`, `Conflict`, `HttpError`."""
        if number > self._last:
            raise NotFound(f"call {number}: there is none", remedy="answer those you were shown")
        waiting = self._waiting.get(number)
        if waiting is None or waiting.answer.done():
            raise Conflict(f"call {number}: it is over", remedy="answer each call once, in time")
        most_bytes = self._most_bytes[waiting.tool]
        if answer.is_ok and len(answer.body) > most_bytes:
            raise HttpError(
                413,
                "too_large",
                f"a result of {len(answer.body)} bytes; the limit is {most_bytes}",
                remedy="answer with an error of kind `too_large`",
            )
        self._actors[number] = actor
        waiting.answer.set_result(answer)

    # -- presence --------------------------------------------------------------------------

    def _watch_absence(self) -> None:
        """Run a timer exactly while a call waits and no client is connected."""
        is_alone = bool(self._waiting) and not self._listeners and not self._is_over
        if is_alone and self._absence is None:
            loop = asyncio.get_running_loop()
            self._absence = loop.call_later(self._absence_s, self._give_up)
        elif not is_alone and self._absence is not None:
            self._absence.cancel()
            self._absence = None

    def _give_up(self) -> None:
        self._absence = None
        for waiting in list(self._waiting.values()):
            if not waiting.answer.done():
                waiting.answer.set_result(refusal("gone", _GONE))

    def _tell(self) -> None:
        news, self._news = self._news, []
        for future in news:
            if not future.done():
                future.set_result(None)

    def _arrival(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news.append(future)
        return future


def _is_answered(waiting: _Waiting) -> bool:
    future = waiting.answer
    return future.done() and not future.cancelled() and future.result().decision != "gone"
