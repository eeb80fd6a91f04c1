"""The guard of a node: the process above its server, which ends it once no gateway hears the node.

Standard library, one loop, no event loop: it has to do one thing when the server can do nothing.
The end of the server is the end of its sandboxes, by the kernel. The invariant: a node whose
answers reached no gateway for `fence_s` has no server, and its name is used up, before a gateway
says that it is lost.

    SECURITY: without it a node that was cut off would go on with what others were told is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

_BEAT = struct.Struct("=q")
"""A server writes the time of the latest answer that a gateway has heard, of CLOCK_BOOTTIME, in
nanoseconds: a machine that was suspended finds out, too."""
_NS = 1_000_000_000
_USED_UP = -1
"""What a server writes instead once a gateway says that its name is lost."""


class Heart:
    """The server's end: it says to the guard what gateways have heard."""

    def __init__(self, descriptor: int, fence_s: float) -> None:
        """`descriptor`: the pipe to the guard."""
        self._descriptor = descriptor
        self.fence_s = fence_s
        self._fence_ns = int(fence_s * _NS)
        self._heard_ns = 0
        self._first_ns = 0
        """The time of this run's first answer; 0: there was none."""

    def beat(self) -> str:
        """Return this node's clock, which an answer carries.

        From the first answer on the fence counts: a gateway that got it may send work.
        """
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if not self._heard_ns:
            self._first_ns = now_ns
            self._note(now_ns)
        return str(now_ns)

    def heard(self, beat: str) -> bool:
        """Note that a gateway has heard the answer of that time; report whether it has.

        What is no time of this run is left, as one of the server before this one, which gateways
        say back until this one answers.
        """
        if self._heard_ns <= 0 or not (beat.isascii() and beat.isdecimal() and len(beat) < 19):
            return False
        at_ns = int(beat)
        if not self._first_ns <= at_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME):
            return False
        if self._heard_ns < at_ns:
            self._note(at_ns)
        return True

    def give_up(self) -> None:
        """Have the guard end this server, whose name is used up, and start another."""
        self._note(_USED_UP)

    def _note(self, at_ns: int) -> None:
        self._heard_ns = at_ns
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._descriptor, _BEAT.pack(at_ns))

    @property
    def is_over(self) -> bool:
        """Whether the guard is about to end this server."""
        if not self._heard_ns:
            return False
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._heard_ns > self._fence_ns


def guard(start: Callable[[int], int], fence_s: float, fenced: Callable[[], object]) -> int:
    """Run a server until it ends by itself or by a signal; return its exit status.

    `start` starts one, given the descriptor for its beats, and returns its pid. `fenced` is called
    when one was ended because no gateway heard it, or because its name is used up; another is
    started then, unless this one was told to end: while it drains the fence holds as before.
    """
    with _signals() as woken:
        while True:
            read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.set_inheritable(write, True)
            pid = start(write)
            os.close(write)
            child = os.pidfd_open(pid)
            try:
                seen = _watch(read, child, woken, int(fence_s * _NS))
                if seen.is_fenced:
                    signal.pidfd_send_signal(child, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
            finally:
                os.close(child)
                os.close(read)
            if not seen.is_fenced or seen.is_told:
                # Nothing of it lives; if its loss was told, the next server hears that, and takes
                # another name then.
                return os.waitstatus_to_exitcode(status)
            fenced()


class _Seen(NamedTuple):
    """What a guard saw of one server."""

    is_fenced: bool
    """Whether its time is over, and not yet the server."""
    is_told: bool
    """Whether it was told to end."""


def _watch(read: int, child: int, woken: int, fence_ns: int) -> _Seen:
    """Wait for the server's end, or for its time to be over; pass signals on."""
    heard_ns, is_told = 0, False
    poll = select.poll()
    for each in (read, child, woken):
        poll.register(each, select.POLLIN)
    while True:
        left_ns = heard_ns + fence_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if heard_ns == _USED_UP or (heard_ns and left_ns <= 0):
            return _Seen(is_fenced=True, is_told=is_told)
        # At most a second: after a suspension the timer of `poll` is late, the clock is not.
        ready = poll.poll(min(1000, left_ns // 1_000_000 + 1) if heard_ns else None)
        found = {descriptor for descriptor, _ in ready}
        if child in found:
            return _Seen(is_fenced=False, is_told=is_told)
        if woken in found:
            for number in os.read(woken, 64):
                is_told |= number in (signal.SIGTERM, signal.SIGINT)
                signal.pidfd_send_signal(child, number)
        if read in found:
            heard_ns = _latest(read, heard_ns, poll)


def _latest(read: int, heard_ns: int, poll: select.poll) -> int:
    """Return the latest time that the server has written."""
    data = os.read(read, 1024 * _BEAT.size)
    if not data:
        poll.unregister(read)  # the server closed it; its own end tells the rest
        return heard_ns
    beats: list[int] = [at_ns for (at_ns,) in _BEAT.iter_unpack(data)]
    return _USED_UP if _USED_UP in beats else max(heard_ns, *beats)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Yield a descriptor from which the numbers of signals are read that are for the server."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, _ignored) for number in numbers}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def _ignored(_number: int, _frame: object) -> None:
    """Only wake the loop."""
