"""One event loop on one background thread, for callers that have none.

The synchronous library is built on it. Each call is handed over and waited for; callbacks run in
the caller's thread. The invariant: a caller that leaves a call early, above all by an exception,
cancels the work on the loop and waits for its end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

from cellwall.model.errors import Conflict, UsageError

_STOP_S = 30.0
_LEAVE_S = 10.0
"""Seconds for cancelled calls to clean up when the thread closes; then their subject is closed."""
_SIGNAL_S = 0.25
"""Seconds by which a signal handler may be delayed in a thread that waits."""


class Closable(Protocol):
    """An object that lives on the loop: an engine, a client."""

    async def aclose(self) -> None:
        """Release everything that the object holds."""


S = TypeVar("S", bound=Closable)
T = TypeVar("T")
Put = Callable[[Any], None]


class Ended:
    """Last item in a call's queue: the outcome of the call."""

    __slots__ = ("error", "value")

    def __init__(self, task: asyncio.Future[Any]) -> None:
        self.error: BaseException | None = None
        self.value: Any = None
        if task.cancelled():
            self.error = asyncio.CancelledError()
        else:
            self.error = task.exception()
            self.value = None if self.error is not None else task.result()


def _cancelled(loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = loop.create_future()
    future.cancel()
    return future


class LoopThread(Generic[S]):
    """One event loop on one thread; it holds one subject, which it makes on first use."""

    def __init__(self, make_subject: Callable[[], S]) -> None:
        self._make_subject = make_subject
        self._loop = asyncio.new_event_loop()
        self._subject: S | None = None
        self._pid = os.getpid()
        self._calls: set[asyncio.Future[Any]] = set()
        """Calls under way; touched on the loop only."""
        self._is_closing = False
        self._is_stopped = False
        # Between "is it there" and "hand over" no thread may stop it. Reentrant: for signal
        # handlers.
        self._open = threading.RLock()
        self._ending = threading.RLock()
        """Held by the thread that closes: a second one returns when that is done."""
        self._thread = threading.Thread(target=self._main, name="cellwall", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def subject(self) -> S:
        """The object that lives here; only for code that runs on this loop."""
        if self._subject is None:
            self._subject = self._make_subject()
        return self._subject

    def call(
        self,
        work: Callable[[S, Put], Coroutine[Any, Any, T]],
        deliver: Callable[[Any], None] | None = None,
    ) -> T:
        """Run `work` on the loop and return its result; what it puts goes to `deliver` here.

        An exception here, KeyboardInterrupt above all, cancels the work and waits for its end.
        """
        # Closed at once: with an exception in `deliver`, the traceback would keep it alive.
        with contextlib.closing(self.iterate(work)) as items:
            for item in items:
                if isinstance(item, Ended):
                    if item.error is not None:
                        raise item.error
                    return cast("T", item.value)
                if deliver is not None:
                    deliver(item)
        raise AssertionError("unreachable: a call always ends")  # pragma: no cover

    def iterate(
        self, work: Callable[[S, Put], Coroutine[Any, Any, Any]]
    ) -> Generator[Any, None, None]:
        """Yield the items that `work` puts, then its `Ended`; leaving early cancels it."""
        self._check_caller()
        queue: SimpleQueue[Any] = SimpleQueue()
        tasks: list[asyncio.Future[Any]] = []

        def begin() -> None:
            tasks.append(self._begin(lambda subject: work(subject, queue.put), queue.put))

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # an interrupt came before `begin` was handed over: nothing will ever end
                queue.put(Ended(_cancelled(self._loop)))

        item = None
        try:
            if not self._hand_over(begin):
                raise _closed()
            while not isinstance(item, Ended):
                item = _next(queue)
                yield item
        finally:
            if not isinstance(item, Ended) and self._hand_over(cancel):
                while not isinstance(_next(queue), Ended):
                    pass

    async def acall(self, work: Callable[[S], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the loop and return its result, for a caller on an event loop of its own.

        Cancelling the caller cancels the work and waits for its end.
        """
        self._check_caller()
        here = asyncio.get_running_loop()
        ended: asyncio.Future[Ended] = here.create_future()
        tasks: list[asyncio.Future[Any]] = []

        def tell(item: Ended) -> None:
            here.call_soon_threadsafe(ended.set_result, item)

        def cancel() -> None:  # the work has begun by then: a loop runs its steps in order
            tasks[0].cancel()

        if not self._hand_over(lambda: tasks.append(self._begin(work, tell))):
            raise _closed()
        try:
            item = await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._hand_over(cancel)
            await ended
            raise
        if item.error is not None:
            raise item.error
        return cast("T", item.value)

    def _begin(
        self, work: Callable[[S], Coroutine[Any, Any, Any]], tell: Callable[[Ended], None]
    ) -> asyncio.Future[Any]:
        """Start `work` on this loop; `tell` receives its end."""
        task: asyncio.Future[Any]
        try:
            if self._is_closing:
                raise _closed()
            task = asyncio.ensure_future(work(self.subject))
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            task = self._loop.create_future()
            task.set_exception(error)
            tell(Ended(task))  # at once: the loop may be about to stop
            return task
        self._calls.add(task)
        task.add_done_callback(lambda ended: self._end(ended, tell))
        return task

    def _end(self, task: asyncio.Future[Any], tell: Callable[[Ended], None]) -> None:
        self._calls.discard(task)
        ended = Ended(task)
        if self._is_closing and task.cancelled():
            ended.error = Conflict(
                "call: it was closed meanwhile, in another thread",
                remedy="close when the last call has returned",
            )
        tell(ended)

    def _check_caller(self) -> None:
        if threading.current_thread() is self._thread:
            raise UsageError("call from inside a callback of its own", remedy="use another thread")
        if self._pid != os.getpid():
            raise UsageError(
                "call: this object was made before a fork", remedy="make a new one in the child"
            )
        if self._loop.is_closed():
            raise _closed()

    def _hand_over(self, step: Callable[[], None]) -> bool:
        """Have the loop run `step`; return False if it was stopped, so that no call is left."""
        with self._open:
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(step)
            return not self._is_stopped

    def close(self) -> None:
        """Close the subject and end the thread; other calls end as `Conflict`. Idempotent."""
        if self._pid != os.getpid():  # the thread is the parent's, perhaps with a lock held
            return
        with self._ending:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_STOP_S)
                with self._open:
                    self._is_stopped = True
                    self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(_STOP_S)
                self._loop.close()

    async def _close(self) -> None:
        self._is_closing = True
        await self._leave(_LEAVE_S)  # before the subject, which their clean-up needs
        if self._subject is not None:
            await self._subject.aclose()
        await self._leave(None)

    async def _leave(self, timeout_s: float | None) -> None:
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=timeout_s)


def _closed() -> UsageError:
    return UsageError("call: it was closed", remedy="make a new one")


def _next(queue: SimpleQueue[Any]) -> Any:  # noqa: ANN401 - whatever was put
    # Not one long wait: a signal that comes just before it, or to another thread, does not end it.
    while True:
        with contextlib.suppress(Empty):
            return queue.get(timeout=_SIGNAL_S)


def at_exit(close: Callable[[], None]) -> None:
    """Call `close` when the interpreter ends, while thread pools still work."""
    # `atexit` runs after the thread pools are shut, and closing needs one. threading's own hook
    # runs before, if it was registered after theirs.
    import concurrent.futures.thread  # noqa: F401 - for the order

    register = getattr(threading, "_register_atexit", atexit.register)
    register(close)
