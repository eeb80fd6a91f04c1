"""A loop on a thread of its own: results, callbacks, and leaving early."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from cellwall.model.errors import UsageError
from cellwall.surface.threads import LoopThread, Put


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
