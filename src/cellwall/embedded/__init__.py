"""Embedded engine: `run` and `Sandbox` for synchronous programs, `arun` for asyncio ones.

It is not a second engine: each call is passed to one engine on one background thread, started on
first use and closed at exit (`arun` and `AsyncSandbox` use an engine on the caller's own event
loop, closed with that loop). Callbacks run in the caller's thread. The invariant: a forked child
never touches its parent's objects; it closes the inherited descriptors and starts its own engine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.engine import loop_engines
from cellwall.engine.engine import Engine
from cellwall.runtimes.channel import channel
from cellwall.surface.sync.loop_thread import LoopThread, Put, at_exit
from cellwall.surface.sync.sandbox import SyncSandbox

if TYPE_CHECKING:
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.model.execution import Execution
    from cellwall.model.limits import Limits
    from cellwall.surface.shared.callbacks import OnEvent


class Runner(LoopThread[Engine]):
    """One event loop with one engine on one thread."""

    def __init__(self, make_engine: Callable[[], Engine] = Engine) -> None:
        """Start the thread; the engine is created there on first use."""
        super().__init__(make_engine)

    def abandon(self) -> None:
        """Forget the engine in a forked child; the thread exists in the parent only."""
        if self._subject is not None:
            self._subject.abandon()


class _Default:
    """The process's runner, created on first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runner: Runner | None = None
        self.abandoned: list[Runner | None] = []
        """Runners of the parent, kept so that no finaliser of its objects runs in the child."""

    def get(self) -> Runner:
        runner = self.runner
        if runner is None:
            with self.lock:
                if self.runner is None:
                    self.runner = Runner(partial(Engine, answers_first=True))
                    at_exit(_default.close)
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
        loop_engines.abandon_all()
        channel.abandon_all()


_default = _Default()


def default_runner() -> Runner:
    """Return the runner of this process, started on first use."""
    return _default.get()


os.register_at_fork(after_in_child=_default.after_fork)


# -- one-shot --------------------------------------------------------------------------------


def run(code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - fields of Request
    """Run `code` once in a fresh sandbox and return the execution.

    Options: `language`, `stdin`, `arguments`, `files`, `timeout`, `limits`, `template`, `runtime`,
    `isolation`, `trust`, `start`, `env`, `args`, `collect`, `artifacts`, `compile_options`,
    `compile_limits`, `tools`, `network`, `secrets`, `volumes`; see
    `engine.programs.requests.Request`.
    """

    def work(engine: Engine, put: Put) -> Coroutine[Any, Any, Execution]:
        return engine.run(code, on_event=None if on_event is None else put, **options)

    return _default.get().call(work, on_event)


async def arun(code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - fields of Request
    """Do what `run` does, on the caller's event loop."""
    return await loop_engines.loop_engine().run(code, on_event=on_event, **options)


# -- sandboxes -------------------------------------------------------------------------------


class Sandbox(SyncSandbox):
    """One live sandbox, synchronously: `with Sandbox() as sandbox: sandbox.run("x = 1")`."""

    def __init__(
        self,
        template: str = "python",
        limits: Limits | Mapping[str, Any] | None = None,
        *,
        runner: Runner | None = None,
        **options: Any,  # noqa: ANN401 - of Engine.create_sandbox
    ) -> None:
        """Create the sandbox; options are those of `Engine.create_sandbox`.

        `runner` is for tests and embedders with an engine of their own.
        """
        thread = runner or _default.get()
        made = thread.call(lambda engine, _put: engine.create_sandbox(template, limits, **options))
        super().__init__(thread, made)
        self._made = made

    @classmethod
    def restore(
        cls, snapshot: str, *, reseed: bool = True, runner: Runner | None = None
    ) -> Sandbox:
        """Return a new sandbox that is the session of a snapshot, by its id or its name.

        Raises NotFound.
        """
        thread = runner or _default.get()
        return cls._of(
            thread,
            thread.call(lambda engine, _put: engine.copies.restore(snapshot, "", reseed=reseed)),
        )

    @classmethod
    def _of(cls, thread: LoopThread[Any], made: AsyncSandbox) -> Sandbox:
        """Return the face of a sandbox that exists."""
        face = cls.__new__(cls)
        SyncSandbox.__init__(face, thread, made)
        face._made = made
        return face

    def _twin(self, inner: AsyncSandbox) -> Sandbox:
        return self._of(self._thread, inner)

    @property
    def posture(self) -> Mapping[str, Any]:
        """Facts of its confinement, as read back from the OS."""
        return self._made.posture
