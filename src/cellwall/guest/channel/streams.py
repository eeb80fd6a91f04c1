"""A stream: one descriptor with bytes in both directions, each as fast as its reader takes them.

Terminals (`commands.py`), connections to ports and watches use it. It is not a pump (`pipes.py`):
nothing is ever cut or dropped here, so the producer waits instead. The descriptor's owner closes
it; a stream only reads, writes and watches it.

The invariant (design/0004): no more bytes leave than the host has granted, and no more are held
here than the host was granted. Both numbers are bounded, so a stream's memory is too.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.loop import READ, WRITE, Loop

INPUT_WINDOW_BYTES = 128 * 1024
"""Maximum number of bytes from the host that may wait here for their reader."""

MOST_GRANTED_BYTES = 2**30
LAST_BYTES = 64 * 1024
"""Maximum bytes that `drain` sends beyond the grant: more than a terminal's kernel buffer."""

_READ_BYTES = 64 * 1024
_BROKEN = select.EPOLLERR | select.EPOLLHUP


class Stream:
    """Both directions of one descriptor; a stream may use only one of them."""

    def __init__(self, loop: Loop, channel: Channel, fd: int, number: int, event: str) -> None:
        """`event` is the name of the events that carry what is read; nothing moves yet."""
        os.set_blocking(fd, False)
        self._loop = loop
        self._channel = channel
        self._fd = fd
        self._number = number
        self._event = event
        self._granted = 0
        self._inbox = bytearray()
        self._taken = 0
        self._watched = 0
        self._is_reading = False
        self._waits_for_room = False
        self._is_void = False
        """Whether grants are void until another host gives new ones."""
        self.dropped = 0
        self.on_end: Callable[[OSError | None], None] | None = None
        """Called once when nothing is left to read, with the error if that is the reason."""
        self.on_flushed: Callable[[], None] | None = None
        """Called whenever nothing is left to write."""
        self.on_deaf: Callable[[], None] | None = None
        """Called when the other side takes no more input."""

    # -- life --------------------------------------------------------------------------------------

    def begin_reading(self, granted: int) -> None:
        """Send what is read, up to `granted` bytes until the host grants more."""
        self._granted = granted
        self._is_reading = True
        self._update()

    def invite(self) -> None:
        """Grant the host the whole input window."""
        self._send_grant(INPUT_WINDOW_BYTES)

    def void_grants(self) -> None:
        """Forget what either side was granted: the host that granted it has gone."""
        self._is_void, self._granted, self._taken = True, 0, 0
        self._update()

    def grant_anew(self, granted: int) -> None:
        """Send up to `granted` bytes to another host, and tell it how much input there is room for.

        Input that the host before has sent and that waits here counts.
        """
        self._is_void, self._taken = False, 0
        room = INPUT_WINDOW_BYTES - len(self._inbox)
        if room > 0:
            self._send_grant(room)
        self._granted = granted
        self._update()

    def stop(self) -> None:
        """Leave the descriptor alone from now on; pending input is lost."""
        self._is_reading = False
        self._inbox.clear()
        self._update()
        self._fd = -1

    def stop_reading(self) -> None:
        """Stop reading; writing goes on."""
        self._is_reading = False
        self._update()

    @property
    def is_flushed(self) -> bool:
        """Whether all input has reached its reader."""
        return not self._inbox

    # -- from the host -----------------------------------------------------------------------------

    def grant(self, count: int) -> None:
        """Send up to `count` bytes more."""
        self._granted = min(self._granted + count, MOST_GRANTED_BYTES)
        self._update()

    def write(self, data: bytes) -> None:
        """Queue input. Drop what exceeds the bound, which only a host beyond its grant sends."""
        if self._fd < 0 or len(self._inbox) + len(data) > 2 * INPUT_WINDOW_BYTES:
            self.dropped += len(data)
            return
        self._inbox += data
        if not self._watched & WRITE:
            self._flush()

    # -- the descriptor ----------------------------------------------------------------------------

    def drain(self) -> None:
        """Send what is there now, whatever is granted, up to `LAST_BYTES`."""
        left = LAST_BYTES
        while left and self._is_reading:
            data = self._read(min(left, _READ_BYTES))
            if not data:
                return
            left -= len(data)

    def _update(self) -> None:
        if self._fd < 0:
            return
        is_due = self._is_reading and self._granted and not self._waits_for_room
        wanted = (READ if is_due else 0) | (WRITE if self._inbox else 0)
        if wanted == self._watched:
            return
        if not self._watched:
            self._loop.watch(self._fd, wanted, self._on_ready)
        elif wanted:
            self._loop.change(self._fd, wanted)
        else:
            self._loop.forget(self._fd)
        self._watched = wanted

    def _on_ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        elif events & _BROKEN and not self._watched & READ:
            # epoll reports these even unasked: they must not keep the loop turning.
            self._go_deaf()
        if events & ~WRITE and self._watched & READ:
            self._read_granted()

    def _read_granted(self) -> None:
        if self._channel.is_full:
            self._waits_for_room = True
            self._update()
            self._channel.wait_for_room(self._on_room)
            return
        self._granted -= len(self._read(min(self._granted, _READ_BYTES)))
        self._update()

    def _on_room(self) -> None:
        self._waits_for_room = False
        self._update()

    def _read(self, most: int) -> bytes:
        try:
            data = os.read(self._fd, most)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError as error:
            self._end(error)
            return b""
        if data:
            self._channel.send({"ev": self._event, "id": self._number}, data)
        else:
            self._end(None)
        return data

    def _end(self, error: OSError | None) -> None:
        self.stop_reading()
        if self.on_end is not None:
            self.on_end(error)

    def _flush(self) -> None:
        try:
            with memoryview(self._inbox) as view:
                written = os.write(self._fd, view)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError:  # EPIPE, ECONNRESET, EIO: the other side does not read any more
            self._go_deaf()
            return
        del self._inbox[:written]
        self._note_taken(written)
        self._update()
        if not self._inbox and self.on_flushed is not None:
            self.on_flushed()

    def _go_deaf(self) -> None:
        self._note_taken(len(self._inbox))
        self._inbox.clear()
        self._update()
        if self.on_deaf is not None:
            self.on_deaf()

    def _note_taken(self, count: int) -> None:
        if self._is_void:
            return  # a new host is told of all the room at once
        self._taken += count
        # In large steps: a keystroke must not cost a frame back.
        if self._taken >= INPUT_WINDOW_BYTES // 4:
            self._send_grant(self._taken)
            self._taken = 0

    def _send_grant(self, count: int) -> None:
        self._channel.send({"ev": "credit", "id": self._number, "bytes": count})
