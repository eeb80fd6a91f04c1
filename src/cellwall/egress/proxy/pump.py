"""One direction of a relay: bytes from one socket to another, until the first one ends.

It works in callbacks of the event loop, not in a task: a task that waits for a socket costs two
turns of the loop and two changes of what is waited for, for every piece. Small amounts are read and
written; a long stream is moved by the kernel through a pipe (splice(2)), and never comes into this
process's memory. At most one piece is under way, so a side that reads slowly holds up the other.

A stream that goes on for long is taken in larger pieces: the kernel says that there is something
only once there are `_GATHERED` bytes (`SO_RCVLOWAT`, socket(7)), because each waking of this
process, and of the reader behind it, costs more than moving what came. What lies there when such a
stream pauses waits for the next look, `_LOOK_S` at most; its end is told at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable

PIECE = 65_536
"""Most bytes read at once."""
_SPLICED_AFTER = 512 * 1024
"""Bytes after which a direction goes over to splice(2); a pipe costs more than short answers."""
_GATHERED_AFTER = 16 << 20
"""Bytes after which a direction waits for larger pieces, from its start or its last pause on."""
_GATHERED = 512 * 1024
"""Bytes of such a piece: half a pipe. A stream on loopback has 1.11 times the rate with it."""
_LOOK_S = 0.002
"""Seconds without a piece that are a pause."""
_PIPE_BYTES = 1 << 20
_SPLICE_FLAGS = 0x01 | 0x02  # SPLICE_F_MOVE, SPLICE_F_NONBLOCK

Note = Callable[[int], float]
"""Counts bytes and returns the seconds to hold them back; what it raises ends the pump."""


class Pump:
    """One direction. Both sockets are non-blocking; the caller closes them, after `stop`."""

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        note: Note,
        ended: Callable[[Exception | None], None],
    ) -> None:
        """`ended` is called once, when `source` has ended and `target` was told, or at an error."""
        self._loop = asyncio.get_running_loop()
        self._source, self._target = source, target
        self._from, self._to = source.fileno(), target.fileno()
        self._note, self._ended = note, ended
        self._moved = 0
        self._held = memoryview(b"")
        """What was read and not yet written."""
        self._pipe: tuple[int, int] | None = None
        self._in_pipe = 0
        """Bytes that lie in the pipe."""
        self._is_reading = self._is_writing = False
        self._pause: asyncio.TimerHandle | None = None
        self._moved_by_look = self._moved_by_pause = 0
        """What `_moved` was at the last look, and at the last pause."""
        self._is_gathering = False
        """Whether the direction waits for larger pieces."""
        self._look: asyncio.TimerHandle | None = None
        """The next look, while it waits for them."""

    def begin(self) -> None:
        """Wait for the source."""
        self._is_reading = True
        if self._is_gathering and self._look is None:
            self._look = self._loop.call_later(_LOOK_S, self._on_look)
        self._loop.add_reader(self._from, self._on_readable)

    def stop(self) -> None:
        """Wait for nothing any more, and drop what was under way. Idempotent."""
        self._wait_for_nothing()
        for timer in (self._pause, self._look):
            if timer is not None:
                timer.cancel()
        self._pause = self._look = None
        if self._pipe is not None:
            for each in self._pipe:
                os.close(each)
            self._pipe = None

    def _wait_for_nothing(self) -> None:
        if self._is_reading:
            self._loop.remove_reader(self._from)
        if self._is_writing:
            self._loop.remove_writer(self._to)
        self._is_reading = self._is_writing = False

    def _end(self, error: Exception | None) -> None:
        self.stop()
        self._ended(error)

    def _on_readable(self) -> None:
        """Take one piece and pass it on; what comes after it waits for the next turn."""
        try:
            got = self._take()
            if not got:
                shut(self._target)
                self._end(None)
                return
            self._moved += got
            seconds = self._note(got)
            if seconds > 0:
                self._wait_for_nothing()
                self._pause = self._loop.call_later(seconds, self._pass_on)
                return
        except (BlockingIOError, InterruptedError):
            return
        except Exception as error:  # noqa: BLE001 - the relay's owner hears of it
            self._end(error)
            return
        self._pass_on()

    def _take(self) -> int:
        """Read one piece; return its bytes, 0 at the end. Raises BlockingIOError and others."""
        if self._pipe is None and self._moved >= _SPLICED_AFTER:
            self._pipe = _pipe()
        if self._pipe is None:
            self._held = memoryview(self._source.recv(PIECE))
            return len(self._held)
        if not self._is_gathering and self._moved - self._moved_by_pause >= _GATHERED_AFTER:
            self._is_gathering = True
            self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _GATHERED)
            self._look = self._loop.call_later(_LOOK_S, self._on_look)
        self._in_pipe = os.splice(self._from, self._pipe[1], _PIPE_BYTES, flags=_SPLICE_FLAGS)
        return self._in_pipe

    def _on_look(self) -> None:
        """Take whatever there is, from now on, if nothing came since the last look."""
        self._look = None
        if not self._is_reading:
            return  # what stands still costs nothing; the next look is when it waits again
        if self._moved > self._moved_by_look:
            self._moved_by_look = self._moved
            self._look = self._loop.call_later(_LOOK_S, self._on_look)
            return
        self._is_gathering = False
        self._moved_by_pause = self._moved
        with contextlib.suppress(OSError):  # the next read says it
            self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _pass_on(self) -> None:
        """Write what is there; wait for the target if it does not take all of it."""
        self._pause = None
        try:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                self._give()
            self._go_on()
        except Exception as error:  # noqa: BLE001 - the relay's owner hears of it
            self._end(error)

    def _go_on(self) -> None:
        """Wait for the target if there is something left for it, and else for the source."""
        is_left = bool(self._held) or self._in_pipe > 0
        if is_left and not self._is_writing:
            self._wait_for_nothing()
            self._is_writing = True
            self._loop.add_writer(self._to, self._pass_on)
        elif not is_left and not self._is_reading:
            self._wait_for_nothing()
            self.begin()

    def _give(self) -> None:
        while self._held:
            self._held = self._held[self._target.send(self._held) :]
        while self._in_pipe and self._pipe is not None:
            reading = self._pipe[0]
            self._in_pipe -= os.splice(reading, self._to, self._in_pipe, flags=_SPLICE_FLAGS)


async def run(*pumps: tuple[socket.socket, socket.socket, Note]) -> None:
    """Run pumps, each from a source to a target, until all have ended.

    The end of one direction is passed on, and the other one goes on. The first error ends all and
    is raised: OSError, or what a `Note` raises.
    """
    all_ended = asyncio.get_running_loop().create_future()
    left = len(pumps)

    def ended(error: Exception | None) -> None:
        nonlocal left
        left -= 1
        if all_ended.done():
            return
        if error is not None:
            all_ended.set_exception(error)
        elif not left:
            all_ended.set_result(None)

    made = [Pump(source, target, note, ended) for source, target, note in pumps]
    try:
        for each in made:
            each.begin()
        await all_ended
    finally:
        for each in made:
            each.stop()


def shut(target: socket.socket) -> None:
    """Say to a socket's other side that nothing more comes."""
    with contextlib.suppress(OSError):  # the other side has gone
        target.shutdown(socket.SHUT_WR)


def _pipe() -> tuple[int, int] | None:
    """Return both ends of a new pipe; None if this process has no descriptors left."""
    try:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # the pages of this user's pipes are used up
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing
