"""A notebook's event loop: it serves every cell, and runs between cells.

Used by `cell.py`, and by `context/main.py` between cells. As in Jupyter, a cell need not await to
make a task, and tasks go on after their cell. Unlike there, `asyncio.run` works in a cell, too: the
loop is reported as the running one to code that asks for it, and stands still while a cell's own
code runs.

It is made when it is first wanted, because it takes three descriptors.
"""

from __future__ import annotations

import _thread
import select
import sys
from typing import TYPE_CHECKING

from cellwall.guest.display import source_registry, tracebacks
from cellwall.guest.process.import_hooks import after_import

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import ModuleType
    from typing import Any


class Background:
    """One event loop of a context, for all its cells."""

    def __init__(self) -> None:
        """Change what `asyncio` reports as the running loop, now or once it is imported."""
        self._loop: Any = None
        self._thread: int | None = None
        """Id of the thread of the running cell, while the cell's code runs."""
        after_import("asyncio", self._lend)

    @property
    def open_loop(self) -> Any:  # noqa: ANN401  asyncio is imported late
        """The loop, if there is one and it is open; else None."""
        return None if self._loop is None or self._loop.is_closed() else self._loop

    def begin(self) -> None:
        """Become the running loop for this thread, where no other one runs."""
        self._thread = _thread.get_ident()

    def end(self) -> None:
        """Stop being the running loop; undo a cell's change of asyncio's current loop."""
        self._thread = None
        if self._loop is not None and not self._loop.is_closed():
            sys.modules["asyncio"].set_event_loop(self._loop)

    def loop(self) -> Any:  # noqa: ANN401  asyncio is imported late
        """Return the loop; a loop that the caller has set is taken, else one is made."""
        import asyncio
        import warnings

        if self._loop is None or self._loop.is_closed():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._loop = asyncio.get_event_loop_policy().get_event_loop()
            except RuntimeError:
                self._loop = None
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self._loop)
        return self._loop

    def wait_for(self, coroutine: Coroutine[Any, Any, object]) -> object:
        """Run `coroutine` to its end; other tasks go on meanwhile."""
        import asyncio

        loop = self.loop()
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except (KeyboardInterrupt, SystemExit):
            # The loop was left in the middle: without this the cell would go on in the next one.
            if not task.done():
                task.cancel()
                loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    def turn(self) -> None:
        """Start tasks that a cell has made, while their output still belongs to that cell."""
        if self._is_wanted():
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def run_until_readable(self, descriptor: int) -> None:
        """Run the tasks that cells have left, until `descriptor` can be read."""
        while self._is_wanted() and not _is_readable(descriptor):
            self._loop.add_reader(descriptor, self._loop.stop)
            try:
                self._loop.run_forever()
            except SystemExit:
                continue
            except BaseException as error:  # noqa: BLE001  a callback of the caller's raises anything
                source_registry.print_to_stderr(tracebacks.text_of(error))
            finally:
                self._loop.remove_reader(descriptor)

    def _is_wanted(self) -> bool:
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return False
        # Loops other than asyncio's own do not say what waits for its time.
        waiting = getattr(loop, "_ready", True) or getattr(loop, "_scheduled", True)
        return bool(waiting or sys.modules["asyncio"].all_tasks(loop))

    def _lend(self, module: ModuleType) -> None:
        asyncio: Any = module
        events = asyncio.events
        running, current = events.get_running_loop, events.get_event_loop

        def get_running_loop() -> object:
            """Return the running event loop; raise a RuntimeError if there is none."""
            found = events._get_running_loop()
            if found is None and self._thread == _thread.get_ident():
                return self.loop()
            return found if found is not None else running()

        def get_event_loop() -> object:
            """Return the running event loop, or the one that is set for this thread."""
            if events._get_running_loop() is None and self._thread == _thread.get_ident():
                return self.loop()
            return current()

        for owner in (events, asyncio):
            owner.get_running_loop = get_running_loop
            owner.get_event_loop = get_event_loop


def _is_readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))
