"""Pipes between init and the processes it started: output on its way out, input on its way in.

Contexts, commands and workers use these. They do not know the protocol beyond the one event a pump
emits, nor which job owns the pipe.

A pump never blocks a producer for good: output over the limit is still read, and counted; output of
a finished job is read and dropped, and output between two jobs kept up to a bound. A feed never
makes init wait.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.loop import READ, WRITE, Loop

_READ_BYTES = 64 * 1024
WIDE_PIPE_BYTES = 1024 * 1024
"""Size in bytes of the pipe of a busy stream."""
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ; fcntl names it only since Python 3.10
_MOST_UNCLAIMED_BYTES = 64 * 1024
"""Bytes of output between two jobs that are kept for the next one."""
_UNCLAIMED_S = 0.05
"""Seconds between two reads of such output that is not kept: a flood costs little."""
_MOST_SINKS = 64
_TELL_S = 0.05
"""Seconds between two reports of how much was cut."""
_MOST_PENDING_BYTES = 64 * 1024 * 1024


class Meter:
    """How much of one stream may pass, how much has, and how much was cut."""

    def __init__(self, limit: int) -> None:
        """`limit` is in bytes."""
        self.limit = limit
        self.passed = 0
        self.cut = 0
        self.told = 0
        """Bytes of `cut` that the host has been told about."""

    def admit(self, data: bytes) -> bytes:
        """Return the part of `data` that may pass."""
        room = self.limit - self.passed
        if len(data) > room:
            self.cut += len(data) - room
            data = data[:room]
        self.passed += len(data)
        return data


class Pump:
    """One pipe (or terminal) whose output becomes events.

    Between two jobs a pump holds: it keeps the first of what is written then for the next job,
    which is told how much more there was, so that a server that a job left behind can go on writing
    its log. A sink reads and drops, so that the processes a finished command left behind do not die
    of a broken pipe.
    """

    def __init__(self, loop: Loop, channel: Channel, fd: int, event: str) -> None:
        """Own `fd`, unread until `begin`; `event` is the name of the events it sends."""
        os.set_blocking(fd, False)
        self._loop = loop
        self._channel = channel
        self._fd = fd
        self._event = event
        self._job = 0
        self._meter: Meter | None = None
        self._is_sink = False
        self._unclaimed = bytearray()
        """Output since the last job."""
        self._unclaimed_cut = 0
        """Bytes of such output that were not kept."""
        self._is_waiting = False
        """Whether the output waits for another host."""
        self._is_watched = False
        self._is_wide = False
        self._is_telling = False
        self.on_end: Callable[[], None] | None = None
        self._resume()

    @property
    def is_open(self) -> bool:
        """Whether the stream has not ended."""
        return self._fd >= 0

    def begin(self, job: int, meter: Meter) -> None:
        """Assign the output to a job from now on."""
        self._job = job
        self._meter = meter
        if self._unclaimed:  # not at once: the job may be withdrawn before it is handed over
            self._loop.set_alarm((self, "unclaimed"), 0, self._say_unclaimed)
        self._resume()

    def drain(self) -> None:
        """Forward what is there, without waiting for more."""
        self._say_unclaimed()
        # One pipe's content at most: a writer that outlives its job could keep this going for ever.
        for _ in range(WIDE_PIPE_BYTES // _READ_BYTES + 1):
            if not self._read():
                break

    def take(self, most: int) -> bytes:
        """Return at most `most` bytes of the output that was given to no job."""
        taken = bytes(self._unclaimed[:most])
        try:
            return taken + os.read(self._fd, most - len(taken)) if self._fd >= 0 else taken
        except BlockingIOError:
            return taken

    def wait_for_host(self) -> None:
        """Leave output unread until `go_on`: no host would have it."""
        self._is_waiting = True
        self._pause()

    def go_on(self) -> None:
        """Undo `wait_for_host`; idempotent."""
        self._is_waiting = False
        self._resume()

    def hold(self) -> None:
        """End the job; further output is the next job's."""
        self._meter = None

    def sink(self) -> None:
        """End the last job; drop further output."""
        self._meter = None
        self._is_sink = True
        self._unclaimed.clear()
        self.go_on()

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            self._pause()
            os.close(self._fd)
            self._fd = -1
            if self.on_end is not None:
                self.on_end()

    def _pause(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.forget(self._fd)

    def _resume(self) -> None:
        if self._fd >= 0 and not self._is_watched and not self._is_waiting:
            self._is_watched = True
            self._loop.watch(self._fd, READ, self._on_ready)

    def _on_ready(self, _events: int) -> None:
        meter = self._meter
        if meter is None:
            if not self._is_sink:
                self._keep_unclaimed()
                return
        elif self._channel.is_full and meter.passed < meter.limit:
            self._pause()
            self._channel.wait_for_room(self._resume)
            return
        self._say_unclaimed()
        self._read()

    def _keep_unclaimed(self) -> None:
        """Read output that is no job's: the first of it is kept, more is counted and dropped."""
        data = self._taken()
        if data is None:
            return
        room = _MOST_UNCLAIMED_BYTES - len(self._unclaimed)
        self._unclaimed += data[:room]
        self._unclaimed_cut += max(0, len(data) - room)
        if self._unclaimed_cut:
            self._pause()
            self._loop.set_alarm((self, "unclaimed"), _UNCLAIMED_S, self._resume)

    def _say_unclaimed(self) -> None:
        """Forward what was written since the last job, as output of this one."""
        meter = self._meter
        if meter is None or not self._unclaimed:
            return
        found, cut = bytes(self._unclaimed), self._unclaimed_cut
        self._unclaimed.clear()
        self._unclaimed_cut = 0
        meter.cut += cut
        self.forward(found)

    def _read(self) -> bool:
        """Forward at most one read of output; return False when there is none, now or ever."""
        data = self._taken()
        if data is None:
            return False
        self.forward(data)
        return True

    def _taken(self) -> bytes | None:
        """Return one read of output; None when there is none, now or ever."""
        if self._fd < 0:
            return None
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""  # EIO: the other side of a terminal is closed
        if not data:
            self.close()
            return None
        return data

    def forward(self, data: bytes) -> None:
        """Send what was read from the pipe, as far as it may pass."""
        meter = self._meter
        if meter is not None:
            admitted = meter.admit(data)
            if admitted:
                self._channel.send({"ev": self._event, "id": self._job}, admitted)
            if meter.cut > meter.told:
                self._tell_soon(meter)
        if len(data) == _READ_BYTES and not self._is_wide:
            self._widen()

    def _tell_soon(self, meter: Meter) -> None:
        """Report from time to time how much was cut.

        A limit may end the job, and then no `done` will report it.
        """
        if not meter.told:
            self._tell(meter)
        elif not self._is_telling:
            self._is_telling = True
            self._loop.set_alarm(self, _TELL_S, self._on_tell)

    def _on_tell(self) -> None:
        self._is_telling = False
        meter = self._meter
        if meter is not None and meter.cut > meter.told:
            if self._channel.is_full:
                self._tell_soon(meter)
            else:
                self._tell(meter)

    def _tell(self, meter: Meter) -> None:
        meter.told = meter.cut
        self._channel.send(
            {"ev": "cut", "id": self._job, "stream": self._event, "bytes": meter.cut}
        )

    def _widen(self) -> None:
        # A full read means a busy stream. Best effort: the kernel limits the sum of wide pipes per
        # user.
        self._is_wide = True
        try:
            fcntl.fcntl(self._fd, _SET_PIPE_SIZE, WIDE_PIPE_BYTES)
        except OSError:
            return


class Sinks:
    """Pumps of finished jobs whose pipes a process still holds; the oldest give way."""

    def __init__(self) -> None:
        self._pumps: deque[Pump] = deque()

    def add(self, pump: Pump) -> None:
        """Take over a pump, unless its stream has already ended."""
        if not pump.is_open:
            return
        pump.sink()
        self._pumps.append(pump)
        if len(self._pumps) > _MOST_SINKS:
            self._pumps.popleft().close()


class Feed:
    """Bytes towards a process's input, at the pace at which it reads them."""

    def __init__(self, loop: Loop, fd: int = -1) -> None:
        """Own `fd`, the writing end; without it, bytes wait until `open`."""
        self._loop = loop
        self._fd = fd
        self._queue = bytearray()
        self._is_watched = False
        self._is_ending = False
        self._is_over = False
        self.dropped = 0
        self.on_progress: Callable[[], None] | None = None
        if fd >= 0:
            os.set_blocking(fd, False)

    @property
    def is_awaited(self) -> bool:
        """Whether the feed has no descriptor to write to yet."""
        return self._fd < 0 and not self._is_over

    def open(self, fd: int) -> None:
        """Own `fd`, which does not block, and write the bytes that have waited for it."""
        self._fd = fd
        if self._queue:
            self._write()
        elif self._is_ending:
            self.close()

    @property
    def pending(self) -> int:
        """Number of bytes that the process has not taken yet."""
        return len(self._queue)

    def write(self, data: bytes) -> None:
        """Queue bytes. What exceeds the bound is dropped and counted: no reader takes that much."""
        if self._is_over or self._is_ending:
            return
        if len(self._queue) + len(data) > _MOST_PENDING_BYTES:
            self.dropped += len(data)
            return
        self._queue += data
        if self._fd >= 0 and not self._is_watched:
            self._write()

    def end(self) -> None:
        """Close once everything is written."""
        self._is_ending = True
        if self._fd >= 0 and not self._queue:
            self.close()

    def close(self) -> None:
        """Close now; what is pending is lost."""
        self._is_over = True
        self._queue.clear()
        if self._fd >= 0:
            self._watch(False)
            os.close(self._fd)
            self._fd = -1

    def _on_ready(self, _events: int) -> None:
        self._write()
        if self.on_progress is not None:
            self.on_progress()

    def _write(self) -> None:
        try:
            with memoryview(self._queue) as view:
                written = os.write(self._fd, view[:WIDE_PIPE_BYTES])
        except BlockingIOError:
            written = 0
        except OSError:
            self.close()  # EPIPE, EIO: the reader is gone, which is its right
            return
        del self._queue[:written]
        if self._queue:
            self._watch(True)
        elif self._is_ending:
            self.close()
        else:
            self._watch(False)

    def _watch(self, wanted: bool) -> None:
        if wanted == self._is_watched:
            return
        self._is_watched = wanted
        if wanted:
            self._loop.watch(self._fd, WRITE, self._on_ready)
        else:
            self._loop.forget(self._fd)
