"""The guard ends a server that no gateway hears, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from cellwall.cluster.node.guard import Heart, guard

pytestmark = pytest.mark.timeout(60)

FENCE_S = 0.3


def _forked(work: Callable[[int], None]) -> Callable[[int], int]:
    """Return what starts a process that does `work`; it ends with status 7 then."""

    def start(beats: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            work(beats)
        finally:
            os._exit(7)

    return start


def _sleep() -> None:
    signal.pause()


def test_server_that_no_gateway_has_ever_heard_goes_on() -> None:
    def work(_beats: int) -> None:
        time.sleep(3 * FENCE_S)

    assert guard(_forked(work), FENCE_S, _unexpected) == 7


def _unexpected() -> None:
    raise AssertionError("it was fenced")


def test_server_that_is_heard_no_longer_is_ended_and_started_anew() -> None:
    starts: list[int] = []

    def work(beats: int) -> None:
        if not starts:
            Heart(beats, FENCE_S).beat()  # one answer, which a gateway may have got
            os.kill(os.getpid(), signal.SIGSTOP)  # it can do nothing itself

    def start(beats: int) -> int:
        pid = _forked(work)(beats)
        starts.append(pid)
        return pid

    def end() -> None:
        """End a server that its guard forgets."""
        if len(starts) == 1:
            os.kill(starts[0], signal.SIGKILL)

    fenced: list[float] = []
    began = time.monotonic()
    patience = threading.Timer(20, end)
    patience.start()
    try:
        assert guard(start, FENCE_S, lambda: fenced.append(time.monotonic())) == 7
    finally:
        patience.cancel()
    assert len(fenced) == 1
    assert len(starts) == 2
    assert fenced[0] - began >= FENCE_S


def test_server_that_is_heard_again_and_again_goes_on() -> None:
    def work(beats: int) -> None:
        heart, until = Heart(beats, FENCE_S), time.monotonic() + 4 * FENCE_S
        while time.monotonic() < until:
            heart.heard(heart.beat())
            time.sleep(FENCE_S / 20)

    assert guard(_forked(work), FENCE_S * 3, _unexpected) == 7


def test_old_and_future_beats_count_for_nothing() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    try:
        heart = Heart(write, FENCE_S)
        now = int(heart.beat())
        assert len(os.read(read, 64)) == 8  # the first answer
        for beat in ("", "x", "-1", str(now + 10**12), "9" * 30, "٣"):
            heart.heard(beat)
        with pytest.raises(BlockingIOError):
            os.read(read, 8)
        assert not heart.is_over
        heart.heard(heart.beat())
        assert len(os.read(read, 64)) == 8
        heart.heard(str(now - 10**9))  # an answer that was on its way for long
        with pytest.raises(BlockingIOError):
            os.read(read, 8)
    finally:
        os.close(read)
        os.close(write)


def test_server_that_was_away_for_longer_than_its_fence_stays_when_it_is_back() -> None:
    def work(beats: int) -> None:
        heart, until = Heart(beats, FENCE_S * 3), time.monotonic() + 4 * FENCE_S
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(4 * FENCE_S * 1e9)
        heart.heard(str(before))  # the first probe says back what the server before has answered
        while time.monotonic() < until:
            heart.heard(heart.beat())
            time.sleep(FENCE_S / 20)

    assert guard(_forked(work), FENCE_S * 3, _unexpected) == 7


def test_beats_of_the_server_before_count_for_nothing() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    try:
        heart = Heart(write, FENCE_S)
        before = str(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        assert not heart.heard(before)
        with pytest.raises(BlockingIOError):
            os.read(read, 8)
        first = heart.beat()
        assert len(os.read(read, 64)) == 8  # the first answer, from which on the fence counts
        assert not heart.heard(before)
        assert heart.heard(first)
        heart.give_up()
        assert len(os.read(read, 64)) == 8
        assert not heart.heard(str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
        with pytest.raises(BlockingIOError):
            os.read(read, 8)  # a name that is used up stays used up
    finally:
        os.close(read)
        os.close(write)


def test_signal_reaches_the_server_and_its_status_is_the_guards() -> None:
    def work(_beats: int) -> None:
        _sleep()

    started = threading.Event()

    def start(beats: int) -> int:
        pid = _forked(work)(beats)
        started.set()
        return pid

    def stop() -> None:
        started.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        assert guard(start, FENCE_S, _unexpected) == -signal.SIGTERM
    finally:
        thread.join()


def test_server_that_was_told_to_end_and_is_heard_no_longer_is_not_started_anew() -> None:
    starts: list[int] = []
    fenced: list[int] = []
    is_ready, say_ready = os.pipe()

    def work(beats: int) -> None:
        if starts:
            return  # another one, which there must not be
        signal.signal(signal.SIGTERM, _stay)
        Heart(beats, FENCE_S).beat()
        os.write(say_ready, b"1")
        while True:
            _sleep()

    def start(beats: int) -> int:
        starts.append(_forked(work)(beats))
        return starts[-1]

    def stop() -> None:
        os.read(is_ready, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        assert guard(start, FENCE_S, lambda: fenced.append(1)) == -signal.SIGKILL
    finally:
        thread.join()
        os.close(is_ready)
        os.close(say_ready)
    assert (len(starts), len(fenced)) == (1, 0)


def _stay(_number: int, _frame: object) -> None:
    """Take its time to end."""
