"""One call of a host tool: checked, approved, timed, answered.

Used by the carrier of calls: the engine, or the SDK. Its input was written by hostile code, and it
returns bytes that may go back to that code: never a traceback, never a path, never more than the
bound.

A function that is not `async` runs on a thread of its own, which nothing can stop: an abandoned
call leaves it running, and its seat taken until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from cellwall.surface.tools import threads as tool_threads
from cellwall.surface.tools.schema import InvalidArguments, check_depth
from cellwall.surface.tools.tools import Incoming, Known, ToolBox, ToolCall, ToolError

Decision = Literal[
    "ok", "invalid", "unknown", "denied", "raised", "timeout", "too_large", "gone", "cancelled"
]

_MOST_MESSAGE = 1000
_PATH = re.compile(r"(?<![\w/:.~-])~?/[^\s'\"<>:,;()\[\]{}]*/[^\s'\"<>:,;()\[\]{}]*")
_log = logging.getLogger("cellwall")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that goes back inside."""

    decision: Decision
    body: bytes
    """JSON: the result, or `kind`, `type` and `message` of the error."""
    error: str = ""
    """Name of the exception, if the function raised one."""

    @property
    def is_ok(self) -> bool:
        """Whether there is a result."""
        return self.decision == "ok"


class _Refused(Exception):
    """A call gets no result; the exception carries its answer."""

    def __init__(self, decision: Decision, message: str, name: str = "") -> None:
        super().__init__(message)
        self.answer = refusal(decision, message, name)


def refusal(decision: Decision, message: str, name: str = "") -> Answer:
    """Return the answer of a call without a result; `name` is that of an exception."""
    said = {"kind": decision, "type": name[:100], "message": message[:_MOST_MESSAGE]}
    return Answer(decision, json.dumps(said).encode("ascii"), name)


def above(size_bytes: int, most_bytes: int) -> str | None:
    """Return the complaint about arguments above the bound of their tool; None within it."""
    if size_bytes <= most_bytes:
        return None
    return f"{size_bytes} bytes of arguments; the limit is {most_bytes}"


class ToolCallHandler:
    """Answers the calls of one loop to one tool box, within the box's bound of calls at once."""

    def __init__(self, box: ToolBox) -> None:
        """Create the handler on the loop that it serves."""
        self._box = box
        self._loop = asyncio.get_running_loop()
        self._seats = box.seats()

    async def answer(self, call: Incoming) -> Answer:
        """Check, approve and run a call; return its answer."""
        try:
            return await self._answer(call)
        except _Refused as refused:
            return refused.answer

    async def _answer(self, incoming: Incoming) -> Answer:
        known = self._box.find(incoming.tool)
        if known is None:
            raise _Refused("unknown", "there is no such tool")
        if (oversize := above(incoming.size_bytes, known.tool.max_bytes)) is not None:
            raise _Refused("too_large", oversize)
        call, arguments = _checked(known, incoming.read)
        await self._approve(known, call)
        return await self._perform(known, arguments)

    async def _approve(self, known: Known, call: ToolCall) -> None:
        asked = known.tool.needs_approval
        if asked is False:
            return
        approve = self._box.approve if asked is True else asked
        try:
            # Not on the loop: a function that asks a person would stop the clocks of all sandboxes.
            verdict = approve is not None and await self._done(approve, lambda it: it, call)
        except Exception as error:  # noqa: BLE001 - the caller's; a failure is no approval
            _log.warning("approval of tool %s failed", known.name, exc_info=error)
            verdict = False
        # `is`: an object that merely looks true was no decision.
        if verdict is not True:
            raise _Refused("denied", "the call was not approved")

    async def _perform(self, known: Known, arguments: dict[str, Any]) -> Answer:
        limit_s = known.tool.timeout_s
        clock = asyncio.timeout(limit_s)
        try:
            async with clock:
                encode = partial(_encoded, known)
                body = await self._done(known.tool.function, encode, **arguments)
        except TimeoutError as error:
            if not clock.expired():
                raise _raised(known, error) from None
            raise _Refused("timeout", f"no result within {limit_s:g} s") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _raised(known, RuntimeError("it was cancelled")) from None
        except _Refused:
            raise
        except Exception as error:  # noqa: BLE001 - the caller's own, told inside by name
            raise _raised(known, error) from None
        return Answer("ok", body)

    async def _done(
        self,
        function: Callable[..., Any],
        finish: Callable[[Any], Any],
        *words: object,
        **named: object,
    ) -> Any:  # noqa: ANN401 - what `finish` makes of its result
        """Call a function of the caller's, here if it is async and on a thread if not."""
        if inspect.iscoroutinefunction(function):
            return finish(await _guarded(function(*words, **named)))

        def work() -> tuple[bool, Any]:
            result = function(*words, **named)
            is_later = inspect.isawaitable(result)
            return is_later, result if is_later else finish(result)

        is_later, result = await self._on_a_thread(work)
        return finish(await _guarded(result)) if is_later else result

    async def _on_a_thread(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - its result
        await self._seats.acquire()
        future: asyncio.Future[tuple[Any, Exception | None]] = self._loop.create_future()
        context = contextvars.copy_context()

        def ended(result: Any, error: Exception | None) -> None:  # noqa: ANN401 - of `work`
            self._seats.release()
            if not future.done():
                future.set_result((result, error))
            else:
                _drop(result)

        def tell(result: Any, error: Exception | None) -> None:  # noqa: ANN401 - likewise
            with contextlib.suppress(RuntimeError):  # the loop was closed: no caller waits
                self._loop.call_soon_threadsafe(ended, result, error)

        def main() -> Callable[[], None]:
            try:
                return partial(tell, context.run(work), None)
            except Exception as error:  # noqa: BLE001 - handed over
                return partial(tell, None, error)
            except BaseException as error:  # noqa: BLE001 - must not end the loop
                return partial(tell, None, RuntimeError(type(error).__name__))

        tool_threads.submit(main)
        try:
            result, failed = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                _drop(future.result()[0])
            raise
        if failed is not None:
            raise failed
        return result


def _drop(result: Any) -> None:  # noqa: ANN401 - of a function of the caller's
    """Close what an async function gave whose call nothing waits for: it never begins."""
    if result is not None and inspect.iscoroutine(result[1]):
        result[1].close()


def _checked(known: Known, read: Callable[[], object]) -> tuple[ToolCall, dict[str, Any]]:
    try:
        given = arguments_of(read)
        return ToolCall(known.name, given), known.check.read(given)
    except ValueError as error:
        raise _Refused("invalid", str(error)) from None
    except Exception as error:  # noqa: BLE001 - of a check that the caller wrote
        raise _raised(known, error) from None


def arguments_of(read: Callable[[], object]) -> dict[str, Any]:
    """Return what `read` gives if it can be arguments at all. Raises ValueError."""
    given = read()
    if not isinstance(given, dict):
        raise InvalidArguments("they are not an object")
    check_depth(given)
    return given


async def _guarded(work: Awaitable[Any]) -> Any:  # noqa: ANN401 - its result
    try:
        return await work
    except SystemExit:
        # It would end the loop, which others use, too.
        raise RuntimeError("SystemExit") from None


def _encoded(known: Known, result: object) -> bytes:
    try:
        body = json.dumps(result, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        _log.info("tool %s: its result is not JSON: %s", known.name, error)
        message = f"its result, {type(result).__name__}, is not JSON"
        raise _Refused("raised", message) from None
    if len(body) > known.tool.max_bytes:
        raise _Refused(
            "too_large", f"a result of {len(body)} bytes; the limit is {known.tool.max_bytes}"
        )
    return body


def _raised(known: Known, error: BaseException) -> _Refused:
    if isinstance(error, ToolError):
        return _Refused("raised", str(error), "ToolError")
    _log.info("tool %s raised %s", known.name, type(error).__name__, exc_info=error)
    return _Refused("raised", _message(error), type(error).__name__)


def _message(error: BaseException) -> str:
    """Return the message of an error, without paths of the host."""
    try:
        # For an OSError the kernel's words; its `str` has the file name.
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    except Exception:  # noqa: BLE001 - a `__str__` of the caller's
        return ""
    return _PATH.sub("<path>", text)
