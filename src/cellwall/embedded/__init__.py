"""The embedded engine: `run` and `Sandbox` for ordinary programs, `arun` for asyncio ones.

Not a second engine: each call is handed to one engine on one background thread, started on first
use and closed at exit (`arun` and `AsyncSandbox` use an engine on the caller's own event loop,
closed with that loop). Callbacks run in the caller's thread. The invariant: a forked child never
touches what belongs to its parent; it closes the inherited descriptors and starts afresh.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from functools import cached_property, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cellwall.embedded.commands import SyncCommands
from cellwall.embedded.contexts import SyncContexts
from cellwall.embedded.files import SyncFiles
from cellwall.engine.commands import OnText, by_stream
from cellwall.engine.engine import Engine
from cellwall.model.errors import UsageError
from cellwall.runtimes import channel

if TYPE_CHECKING:
    from types import TracebackType

    from cellwall.embedded.ports import SyncPorts
    from cellwall.engine.execution import OnEvent
    from cellwall.model.execution import Event, Execution
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation

T = TypeVar("T")
Put = Callable[[Any], None]
_STOP_S = 30.0


class _Ended:
    """Last item in a call's queue."""

    __slots__ = ("error", "value")

    def __init__(self, task: asyncio.Future[Any]) -> None:
        self.error: BaseException | None = None
        self.value: Any = None
        if task.cancelled():
            self.error = asyncio.CancelledError()
        else:
            self.error = task.exception()
            self.value = None if self.error is not None else task.result()


class Runner:
    """One event loop with one engine on one thread."""

    def __init__(self, make_engine: Callable[[], Engine] = Engine) -> None:
        """Start the thread; the engine is made there on first use."""
        self._make_engine = make_engine
        self._loop = asyncio.new_event_loop()
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._main, name="cellwall", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def engine(self) -> Engine:
        """The engine; only for code that runs on this loop."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    def call(
        self,
        work: Callable[[Engine, Put], Coroutine[Any, Any, T]],
        deliver: Callable[[Any], None] | None = None,
    ) -> T:
        """Run `work` over there and return its result; its second argument feeds `deliver` here.

        An exception here, KeyboardInterrupt above all, cancels the work and waits for its end.
        """
        # Closed at once: with an exception in `deliver`, the traceback would keep it alive.
        with contextlib.closing(self.iterate(work)) as items:
            for item in items:
                if isinstance(item, _Ended):
                    if item.error is not None:
                        raise item.error
                    return cast("T", item.value)
                if deliver is not None:
                    deliver(item)
        raise AssertionError("unreachable: a call always ends")  # pragma: no cover

    def iterate(
        self, work: Callable[[Engine, Put], Coroutine[Any, Any, Any]]
    ) -> Generator[Any, None, None]:
        """Yield what `work` puts, then its `_Ended`; leaving early cancels it."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                "call from inside a callback of the engine", remedy="use another thread"
            )
        queue: SimpleQueue[Any] = SimpleQueue()
        tasks: list[asyncio.Future[Any]] = []

        def begin() -> None:
            task: asyncio.Future[Any]
            try:
                task = asyncio.ensure_future(work(self.engine, queue.put))
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                task = self._loop.create_future()
                task.set_exception(error)
            tasks.append(task)
            task.add_done_callback(lambda ended: queue.put(_Ended(ended)))

        def cancel() -> None:
            tasks[0].cancel()

        self._loop.call_soon_threadsafe(begin)
        item = None
        try:
            while not isinstance(item, _Ended):
                item = queue.get()
                yield item
        finally:
            if not isinstance(item, _Ended):
                self._loop.call_soon_threadsafe(cancel)
                while not isinstance(queue.get(), _Ended):
                    pass

    def close(self) -> None:
        """Close the engine and end the thread."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_STOP_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)
            self._loop.close()

    async def _close(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()

    def abandon(self) -> None:
        """Forget the engine in a forked child; the thread exists in the parent only."""
        if self._engine is not None:
            self._engine.abandon()


class _Default:
    """The process's runner, made on first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runner: Runner | None = None
        self.abandoned: list[Runner | None] = []
        """Kept, so that no finaliser of the parent's objects runs in the child."""

    def get(self) -> Runner:
        runner = self.runner
        if runner is None:
            with self.lock:
                if self.runner is None:
                    self.runner = Runner()
                    _at_exit()
                runner = self.runner
        return runner

    def close(self) -> None:
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.close()

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        runner, self.runner = self.runner, None
        if runner is not None:
            self.abandoned.append(runner)
            runner.abandon()
        for engine in list(_loop_engines.values()):
            engine.abandon()
        _loop_engines.clear()
        channel.abandon_all()


def _at_exit() -> None:
    # `atexit` comes after the thread pools are shut, and closing an engine needs one; threading's
    # own hook comes before, if registered after theirs.
    import concurrent.futures.thread  # noqa: F401 - for the order

    register = getattr(threading, "_register_atexit", atexit.register)
    register(_default.close)


_loop_engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = (
    weakref.WeakKeyDictionary()
)
_default = _Default()
os.register_at_fork(after_in_child=_default.after_fork)


def loop_engine() -> Engine:
    """Return the engine of the running event loop; it is closed when the loop is shut down."""
    loop = asyncio.get_running_loop()
    engine = _loop_engines.get(loop)
    if engine is None:
        engine = _loop_engines[loop] = Engine()
        keeper = _keep(engine)
        # An asynchronous generator that was started is what a loop closes at its end
        # (`shutdown_asyncgens`, which `asyncio.run` calls): our only hook there.
        starting = asyncio.ensure_future(keeper.__anext__())
        starting.add_done_callback(partial(_hold, loop, keeper))
    return engine


_keepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncIterator[None]] = (
    weakref.WeakKeyDictionary()
)


def _hold(
    loop: asyncio.AbstractEventLoop, keeper: AsyncIterator[None], _: asyncio.Future[None]
) -> None:
    _keepers[loop] = keeper


async def _keep(engine: Engine) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await engine.aclose()


# -- one-shot --------------------------------------------------------------------------------


def run(code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - fields of Request
    """Run `code` once in a fresh sandbox and return what it did.

    Options: `language`, `stdin`, `arguments`, `files`, `timeout`, `limits`, `template`,
    `runtime`, `isolation`, `start`, `env`, `args`, `collect`; see `engine.requests.Request`.
    """

    def work(engine: Engine, put: Put) -> Coroutine[Any, Any, Execution]:
        return engine.run(code, on_event=None if on_event is None else put, **options)

    return _default.get().call(work, on_event)


async def arun(code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - fields of Request
    """Do what `run` does, on the caller's event loop."""
    return await loop_engine().run(code, on_event=on_event, **options)


# -- sandboxes -------------------------------------------------------------------------------


class Sandbox:
    """One live sandbox, synchronously: `with Sandbox() as sandbox: sandbox.run("x = 1")`."""

    def __init__(
        self,
        template: str = "python",
        limits: Limits | Mapping[str, Any] | None = None,
        *,
        runner: Runner | None = None,
        **options: Any,  # noqa: ANN401 - of Engine.create_sandbox
    ) -> None:
        """Create it; options are those of `Engine.create_sandbox`.

        `runner` is for tests and embedders with an engine of their own.
        """
        self._runner = runner or _default.get()
        self._inner = self._runner.call(
            lambda engine, _put: engine.create_sandbox(template, limits, **options)
        )
        self.contexts = SyncContexts(self._runner, self._inner)
        self.commands = SyncCommands(self._runner, self._inner)
        self.files = SyncFiles(self._runner, self._inner)

    @cached_property
    def ports(self) -> SyncPorts:
        """Connections to servers inside."""
        from cellwall.embedded.ports import SyncPorts

        return SyncPorts(self._runner, self._inner)

    @property
    def id(self) -> str:
        """Its id."""
        return self._inner.id

    @property
    def status(self) -> str:
        """`running` until it is closed or has ended."""
        return self._inner.status

    @property
    def isolation(self) -> Isolation:
        """Which isolation really runs."""
        return self._inner.isolation

    @property
    def posture(self) -> Mapping[str, Any]:
        """The facts of its confinement, as read back from the OS."""
        return self._inner.posture

    @property
    def limits(self) -> Limits:
        """The limits that apply."""
        return self._inner.limits

    def run(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        code: str,
        language: str | None = None,
        context: str = "main",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
    ) -> Execution:
        """Run a cell in a context, or a program of another language beside it."""
        deliver = by_stream(on_stdout, on_stderr, on_event)
        return self._runner.call(
            lambda _engine, put: self._inner.run(
                code,
                language,
                context,
                stdin=stdin,
                timeout=timeout,
                on_event=None if deliver is None else put,
            ),
            deliver,
        )

    def stream(self, code: str, **options: Any) -> Iterator[Event]:  # noqa: ANN401 - of run
        """Yield the events of `run(code, …)` as they come; the last one is `end`."""
        with contextlib.closing(
            self._runner.iterate(
                lambda _engine, put: self._inner.run(code, on_event=put, **options)
            )
        ) as items:
            for item in items:
                if not isinstance(item, _Ended):
                    yield item
                elif item.error is not None:
                    raise item.error

    def interrupt(self, context: str = "main") -> None:
        """Raise KeyboardInterrupt in what the context runs now."""
        self._runner.call(lambda _engine, _put: self._inner.interrupt(context))

    def extend(self, life_s: float) -> None:
        """Let it live `life_s` seconds from now."""
        self._runner.call(lambda _engine, _put: self._inner.extend(life_s))

    def close(self) -> None:
        """Destroy it; idempotent."""
        self._runner.call(lambda _engine, _put: self._inner.close())

    def __enter__(self) -> Sandbox:
        """Use it as a context manager that closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
