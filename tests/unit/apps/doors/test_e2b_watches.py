"""Watches of E2B's door: what waits for a client, and which errors it gets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cellwall.apps.doors.e2b.daemon import watch as module
from cellwall.apps.doors.e2b.daemon.connect import messages
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError
from cellwall.apps.doors.e2b.daemon.watch import Watchers
from cellwall.model.files import Change
from cellwall.surface.shared.tasks import Tasks
from kit.loop_clock import clock, run

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.seat import Seat


class _Watch:
    """A watch that reports what the test says, and then ends."""

    def __init__(self, changes: list[Change]) -> None:
        self._changes = changes

    async def start(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Change]:
        for each in self._changes:
            yield each

    async def aclose(self) -> None:
        pass


def _seat(*changes: Change, sandbox_id: str = "s") -> Seat:
    async def stat(_path: str) -> None:
        """Answer at once."""

    files = SimpleNamespace(watch=lambda *_, **__: _Watch(list(changes)), stat=stat)
    sandbox = SimpleNamespace(id=sandbox_id, files=files, facts={})
    request = SimpleNamespace(headers={}, state=SimpleNamespace(tasks=Tasks()))
    return cast("Seat", SimpleNamespace(sandbox=sandbox, request=request))


def _created(*names: str) -> list[Change]:
    return [Change("created", name, is_directory=True) for name in names]


GONE = Change("removed", ".", is_directory=True)


async def _watcher(watchers: Watchers, seat: Seat) -> dict[str, Any]:
    """Create a watcher, and return what names it once all changes have come."""
    made = await watchers.create(seat, {"path": "/tmp"})
    await seat.request.state.tasks.wait_empty()
    return made


async def _names(watchers: Watchers, seat: Seat, made: dict[str, Any]) -> list[str]:
    return [each["name"] for each in (await watchers.events(seat, made))["events"]]


def test_changes_come_before_the_error_which_stays() -> None:
    async def run() -> None:
        watchers, seat = Watchers(), _seat(*_created("a", "b"))
        made = await _watcher(watchers, seat)
        assert await _names(watchers, seat, made) == ["a", "b"]
        for _ in range(2):
            with pytest.raises(ConnectError, match="hibernated; watch again"):
                await watchers.events(seat, made)

    asyncio.run(run())


class _LateWatch(_Watch):
    """A watch whose changes come one after another once a client waits for them."""

    async def __aiter__(self) -> AsyncIterator[Change]:
        for each in self._changes:
            for _ in range(3):
                await asyncio.sleep(0)
            yield each
        await asyncio.Event().wait()


def test_a_client_that_asks_at_once_gets_what_has_just_changed() -> None:
    async def run() -> None:
        watchers, seat = Watchers(), _seat(*_created("a", "b", "c"))
        seat.sandbox.files.watch = lambda *_, **__: _LateWatch(_created("a", "b", "c"))  # type: ignore[method-assign,assignment]
        made = await watchers.create(seat, {"path": "/tmp"})
        assert await _names(watchers, seat, made) == ["a", "b", "c"]
        assert await _names(watchers, seat, made) == []
        await watchers.aclose()

    asyncio.run(run())


def test_a_change_of_a_slow_sandbox_is_waited_for() -> None:
    """Its answers take half a second, and the change comes a second after the question."""

    class Slow(_Watch):
        async def __aiter__(self) -> AsyncIterator[Change]:
            await asyncio.sleep(1.5)
            for each in self._changes:
                yield each
            await asyncio.Event().wait()

    async def stat(_path: str) -> None:
        await asyncio.sleep(0.5)

    async def main() -> None:
        watchers, seat = Watchers(), _seat()
        seat.sandbox.files.watch = lambda *_, **__: Slow(_created("a"))  # type: ignore[method-assign,assignment]
        seat.sandbox.files.stat = stat  # type: ignore[method-assign,assignment]
        made = await watchers.create(seat, {"path": "/tmp"})
        asking = asyncio.ensure_future(_names(watchers, seat, made))
        for _ in range(4):
            await clock().advance(0.5)
        assert await asking == ["a"]
        await watchers.aclose()

    run(main())


def test_a_directory_that_never_rests_keeps_no_client_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 1 << 40)
    monkeypatch.setattr(module, "_MOST_CHARACTERS", 1 << 40)
    monkeypatch.setattr(module, "_MOST_S", 0.01)

    class Busy(_Watch):
        async def __aiter__(self) -> AsyncIterator[Change]:
            for number in itertools.count():
                await asyncio.sleep(0)
                yield Change("created", str(number), is_directory=True)

    async def run() -> None:
        watchers, seat = Watchers(), _seat()
        seat.sandbox.files.watch = lambda *_, **__: Busy([])  # type: ignore[method-assign,assignment]
        made = await watchers.create(seat, {"path": "/tmp"})
        names = await asyncio.wait_for(_names(watchers, seat, made), 10)
        assert names[0] == "0"
        await watchers.aclose()

    asyncio.run(run())


def test_a_new_file_is_told_of_as_one_that_was_written() -> None:
    async def run() -> None:
        watchers, seat = Watchers(), _seat(Change("created", "a"), *_created("b"), GONE)
        made = await _watcher(watchers, seat)
        found = (await watchers.events(seat, made))["events"]
        new = [messages.CREATE, messages.CHMOD, messages.WRITE]
        assert [each["type"] for each in found if each["name"] == "a"] == new
        assert [each["type"] for each in found if each["name"] == "b"] == [messages.CREATE]

    asyncio.run(run())


def test_a_directory_that_is_gone_is_no_error() -> None:
    async def run() -> None:
        watchers, seat = Watchers(), _seat(*_created("a"), GONE)
        made = await _watcher(watchers, seat)
        assert await _names(watchers, seat, made) == ["a"]
        assert await _names(watchers, seat, made) == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("bound", "most"),
    [("_MOST_KEPT", 2), ("_MOST_CHARACTERS", 2 * len("{'name': 'a', 'type': 1}"))],
)
def test_changes_that_no_client_fetches_are_bounded(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(module, bound, most)

    async def run() -> None:
        watchers, seat = Watchers(), _seat(*_created("a", "b", "c"), GONE)
        made = await _watcher(watchers, seat)
        assert await _names(watchers, seat, made) == ["a", "b"]
        with pytest.raises(ConnectError, match="2 changes were not fetched") as caught:
            await watchers.events(seat, made)
        assert caught.value.code == "data_loss"

    asyncio.run(run())


def test_ended_watchers_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ENDED", 2)

    async def run() -> None:
        watchers = Watchers()
        seats = [_seat(*_created("a"), GONE, sandbox_id=str(at)) for at in range(4)]
        made = [await _watcher(watchers, seat) for seat in seats]
        with pytest.raises(ConnectError, match="not found"):
            await watchers.events(seats[0], made[0])
        for at in (1, 2, 3):
            assert await _names(watchers, seats[at], made[at]) == ["a"]

    asyncio.run(run())
