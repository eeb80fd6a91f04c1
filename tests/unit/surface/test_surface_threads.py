"""A loop on a thread of its own: results, callbacks, and leaving early."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from cellwall.model.errors import Conflict, UsageError
from cellwall.surface.sync.loop_thread import LoopThread, Put


class Subject:
    """Lives on the loop; knows what happened to it."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.was_cancelled = False
        self.is_closed = False

    async def add(self, put: Put) -> int:
        for n in range(3):
            put(n)
        return 42

    async def hang(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.fixture
def thread() -> Iterator[LoopThread[Subject]]:
    made = LoopThread(Subject)
    yield made
    made.close()


def test_call_returns_and_delivers_in_the_callers_thread(thread: LoopThread[Subject]) -> None:
    seen: list[tuple[int, threading.Thread]] = []
    answer = thread.call(
        lambda subject, put: subject.add(put),
        lambda item: seen.append((item, threading.current_thread())),
    )
    assert answer == 42
    assert seen == [(n, threading.current_thread()) for n in range(3)]
    assert thread.subject.thread is not threading.current_thread()


def test_signal_ends_a_wait_whichever_thread_it_came_to(thread: LoopThread[Subject]) -> None:
    async def work(subject: Subject) -> None:
        # Here, on the loop's thread: the caller's wait is not interrupted by it.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await subject.hang()

    with pytest.raises(KeyboardInterrupt):
        thread.call(lambda subject, _put: work(subject))
    assert thread.subject.was_cancelled


def test_leaving_early_cancels_and_waits_for_the_end(thread: LoopThread[Subject]) -> None:
    async def work(subject: Subject, put: Put) -> None:
        put("first")
        await subject.hang()

    items = thread.iterate(work)
    assert next(items) == "first"
    items.close()
    assert thread.subject.was_cancelled


def test_error_over_there_is_the_callers(thread: LoopThread[Subject]) -> None:
    async def work() -> None:
        raise KeyError("over there")

    with pytest.raises(KeyError, match="over there"):
        thread.call(lambda _subject, _put: work())


def test_call_from_its_own_thread_is_refused_instead_of_hanging(
    thread: LoopThread[Subject],
) -> None:
    async def work() -> None:
        thread.call(lambda subject, put: subject.add(put))

    with pytest.raises(UsageError, match="callback"):
        thread.call(lambda _subject, _put: work())


def test_closing_closes_the_subject_and_refuses_calls(thread: LoopThread[Subject]) -> None:
    thread.call(lambda subject, put: subject.add(put))
    subject = thread.subject
    thread.close()
    thread.close()
    assert subject.is_closed
    with pytest.raises(UsageError, match="closed"):
        thread.call(lambda subject, put: subject.add(put))


def test_closing_answers_a_call_of_another_thread(thread: LoopThread[Subject]) -> None:
    begun = threading.Event()
    was_open: list[bool] = []

    async def work(subject: Subject) -> None:
        begun.set()
        try:
            await subject.hang()
        finally:  # what it has to clean up by
            was_open.append(not subject.is_closed)

    def call() -> None:
        with pytest.raises(Conflict, match="closed meanwhile"):
            thread.call(lambda subject, _put: work(subject))
        answered.append(True)

    answered: list[bool] = []
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    begun.wait()
    thread.close()
    caller.join(10)
    assert (answered, was_open) == ([True], [True])


def test_closing_answers_a_call_of_an_event_loop(thread: LoopThread[Subject]) -> None:
    async def main() -> None:
        begun = asyncio.Event()
        here = asyncio.get_running_loop()

        async def work(subject: Subject) -> None:
            here.call_soon_threadsafe(begun.set)
            await subject.hang()

        call = asyncio.ensure_future(thread.acall(work))
        await begun.wait()
        await asyncio.to_thread(thread.close)
        with pytest.raises(Conflict, match="closed meanwhile"):
            await asyncio.wait_for(call, 10)
        with pytest.raises(UsageError, match="closed"):
            await thread.acall(work)

    asyncio.run(main())


def test_iterator_is_left_after_a_close_without_waiting(thread: LoopThread[Subject]) -> None:
    async def work(subject: Subject, put: Put) -> None:
        put("first")
        await subject.hang()

    items = thread.iterate(work)
    assert next(items) == "first"
    thread.close()
    items.close()
    assert thread.subject.was_cancelled


def test_call_that_a_close_overtakes_is_refused(thread: LoopThread[Subject]) -> None:
    """What is called while the subject is being closed, and so found it open."""
    refused: list[str] = []

    def call() -> None:
        with pytest.raises(UsageError) as error:
            thread.call(lambda subject, put: subject.add(put))
        refused.append(error.value.message)

    async def aclose() -> None:
        await asyncio.to_thread(call)

    thread.subject.aclose = aclose  # type: ignore[method-assign]  # this test's own
    thread.close()
    assert refused == ["call: it was closed"]


def test_second_thread_that_closes_comes_back_when_it_is_closed(
    thread: LoopThread[Subject],
) -> None:
    begun, other_is_there = threading.Event(), threading.Event()

    async def aclose() -> None:
        begun.set()
        await asyncio.to_thread(other_is_there.wait, 10)

    def close() -> None:
        begun.wait()
        other_is_there.set()
        thread.close()

    thread.subject.aclose = aclose  # type: ignore[method-assign]  # this test's own
    other = threading.Thread(target=close, daemon=True)
    other.start()
    thread.close()
    other.join(10)
    assert not other.is_alive()
