"""Builds under way: each with its steps, the end of its output, and its result.

Not how an image is built (`builder`). For servers, whose callers do not hold a connection as long
as a build may take. The invariants: a tenant has no more builds at once than its share; what a
build writes costs a bounded number of bytes here, whatever its programs print; the resources that
a build was given are given back when it ends, however it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CapacityError, CellwallError, QuotaExceeded
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from cellwall.engine.images.builder import BuildEvent
    from cellwall.engine.images.image_store import StoredImage
    from cellwall.surface.shared.tasks import Tasks

_KEPT_S = 600.0
_MOST_ENDED = 50
"""Ended builds that are remembered, of all tenants."""
_MOST_EVENTS = 5000
_MOST_CHARACTERS = 1 << 18
_RETRY_S = 10.0


class BuildTooLong(CellwallError):
    """A build took longer than the operator lets one take."""

    code = "build_failed"


class BuildCancelled(CellwallError):
    """A build was cancelled."""

    code = "cancelled"


@dataclass(slots=True)
class BuildState:
    """One build, also for a while after its end."""

    owner: str
    """The tenant."""
    name: str
    further: tuple[str, ...] = ()
    """Other names that the image gets."""
    id: str = field(default_factory=new_id)
    began_at: float = field(default_factory=time.time)
    stored: StoredImage | None = None
    failure: BaseException | None = None
    steps: int = 0
    """Number of steps that have begun."""
    cached: int = 0
    """Number of those that had been done before."""
    line: int = 0
    """Line of the step at hand; 0 before the first."""
    step: str = ""
    """The step at hand."""
    ended_at: float | None = None
    """When it ended, in seconds of the monotonic clock."""
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    events: deque[tuple[int, BuildEvent]] = field(default_factory=deque)
    """The last ones, with their numbers from 1."""
    last: int = 0
    """Number of the last event."""
    clipped: Mapping[str, float] = field(default_factory=dict)
    """Limits that were asked for above the operator's."""
    task: asyncio.Task[None] | None = None
    _characters: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> str:
        """`building`, `built`, `failed` or `cancelled`."""
        if self.ended_at is None:
            return "building"
        if self.stored is not None:
            return "built"
        return "cancelled" if isinstance(self.failure, BuildCancelled) else "failed"

    def tell(self, event: BuildEvent) -> None:
        """Take in an event; the oldest ones go if there are too many."""
        if event.kind == "step":
            self.steps += 1
            self.line, self.step = event.line, event.text
        self.cached += event.kind == "cached"
        self.last += 1
        self.events.append((self.last, event))
        self._characters += len(event.text)
        while len(self.events) > _MOST_EVENTS or self._characters > _MOST_CHARACTERS:
            self._characters -= len(self.events.popleft()[1].text)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def end(self, stored: StoredImage | None, failure: BaseException | None) -> None:
        """Record the result; idempotent."""
        if self.ended_at is None:
            self.stored, self.failure = stored, failure
            self.ended_at = time.monotonic()
            self.ended.set_result(None)
            self._wake()

    async def follow(self, after: int) -> AsyncIterator[dict[str, Any]]:
        """Yield the events behind number `after` as they come, until the end of the build."""
        while True:
            for number, event in [each for each in self.events if each[0] > after]:
                if number > after + 1:
                    yield {"seq": number, "type": "gap", "after": after, "next": number}
                after = number
                yield {"seq": number, "type": event.kind, "line": event.line, "text": event.text}
            if after >= self.last:
                if self.ended_at is not None:
                    return
                await self._news.wait()


Work = Callable[[BuildState], Awaitable["StoredImage"]]


class Builds:
    """The builds of one engine."""

    def __init__(self, tasks: Tasks, most: int, build_s: float) -> None:
        """`most`: how many builds there are at once, of all tenants; `build_s`: seconds of each."""
        self._tasks = tasks
        self._most = most
        self._build_s = build_s
        self._open: Counter[str] = Counter()
        self.all: dict[str, BuildState] = {}

    @contextmanager
    def place(self, owner: str, most: int | None) -> Iterator[None]:
        """Hold one of the tenant's `most` places, from before its context comes until the end.

        Raises QuotaExceeded, CapacityError.
        """
        if most is not None and self._open[owner] >= most:
            raise QuotaExceeded(
                "builds",
                f"quota builds: {self._open[owner]} of {most} are under way",
                retry_after_s=_RETRY_S,
                remedy="wait for the end of one, or cancel it",
            )
        if self._open.total() >= self._most:
            raise CapacityError(
                f"templates: {self._most} builds are under way",
                retry_after_s=_RETRY_S,
                remedy="try again later",
            )
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            self._open += Counter()  # forget tenants that have none

    def begin(self, build: BuildState, work: Work, held: ExitStack) -> BuildState:
        """Begin a build; `held` is closed at its end."""
        self._expire()
        self.all[build.id] = build
        build.task = self._tasks.spawn(self._do(build, work))
        # Also if it is cancelled before its first step.
        build.task.add_done_callback(partial(self._ended, build, held))
        return build

    async def _do(self, build: BuildState, work: Work) -> None:
        limit = asyncio.timeout(self._build_s)
        try:
            async with limit:
                build.stored = await work(build)
        except TimeoutError as error:
            build.failure = error
            if limit.expired():
                build.failure = BuildTooLong(
                    f"build: it took longer than {self._build_s:g} seconds",
                    remedy="do less in one build, or ask the operator for more: build_s",
                )
        except Exception as error:  # noqa: BLE001 - shown to the caller
            build.failure = error

    def _ended(self, build: BuildState, held: ExitStack, task: asyncio.Task[None]) -> None:
        held.close()
        if task.cancelled():
            build.stored = None
            build.failure = BuildCancelled("build: it was cancelled", remedy="begin another one")
        build.end(build.stored, build.failure)

    def cancel(self, build: BuildState) -> bool:
        """Cancel a build; return whether it was still under way."""
        is_open = build.ended_at is None
        if is_open and build.task is not None:
            build.task.cancel()
        return is_open

    def _expire(self) -> None:
        limit = time.monotonic() - _KEPT_S
        ended = [each for each in self.all.values() if each.ended_at is not None]
        for at, each in enumerate(reversed(ended)):
            if (each.ended_at or 0) < limit or at >= _MOST_ENDED:
                del self.all[each.id]
