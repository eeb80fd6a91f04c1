"""Init's end of the channel to the host: requests in, events out, never blocking.

`init/main.py` owns the only one. It knows frames and nothing about operations.

The queue towards the host is bounded: every producer of output asks `is_full` first and waits for
room. An end of stream here means that the host is gone, and then nothing of the sandbox may live.
"""

from __future__ import annotations

# The C module under `socket`: the Python class over it makes enum members of every constant, and a
# fork pays for each page that it writes to.
import _socket
import os
from collections.abc import Callable

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.channel.frames import (
    MAX_EVENT_HEADER_BYTES,
    MAX_REQUEST_BODY_BYTES,
    MAX_REQUEST_HEADER_BYTES,
    Decoder,
    Header,
    encode,
)
from cellwall.guest.channel.init_link import MOST_FILES, MSG_CMSG_CLOEXEC, descriptors_in
from cellwall.guest.channel.loop import READ, WRITE, Loop

QUEUE_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024
_ROOM_FOR_FILES = _socket.CMSG_SPACE(MOST_FILES * 4)


class HostGone(Exception):
    """The channel ended; the sandbox ends with it."""


class Channel:
    """Frames from and to the host, with a bounded queue of outgoing bytes."""

    def __init__(self, on_frame: Callable[[Header, bytes], None]) -> None:
        """Without a descriptor frames may be queued, but nothing moves before `open`."""
        self._fd = -1
        self._out_fd = -1
        self._decoder = Decoder(MAX_REQUEST_HEADER_BYTES, MAX_REQUEST_BODY_BYTES)
        self._on_frame = on_frame
        self._queue = bytearray()
        self._waiting: list[Callable[[], None]] = []
        self._is_reading = True
        self._is_writing = False
        self._loop: Loop | None = None
        self._receiving: _socket.socket | None = None
        """The descriptor as a socket, once descriptors may come with frames."""
        self._files: list[int] = []
        self.sent_bytes = 0
        """Number of bytes that the host's socket has taken."""

    def open(self, fd: int, loop: Loop, out_fd: int = -1) -> None:
        """Own the socket `fd` and begin to serve; with `out_fd`, a pipe, write there instead."""
        os.set_blocking(fd, False)
        self._fd = self._out_fd = fd
        self._loop = loop
        if out_fd >= 0:
            os.set_blocking(out_fd, False)
            self._out_fd = out_fd
            loop.watch(out_fd, 0, self._on_out)
        loop.watch(fd, READ, self._on_ready)

    def replace(self, fd: int) -> int:
        """Go on with another socket; return how many bytes were not sent on the one before.

        They are dropped, and so is half a frame that was received, with the descriptors that came:
        only whole frames are believed.
        """
        assert self._loop is not None  # noqa: S101  for the type checker only
        self._loop.forget(self._fd)
        self._forget_files()
        os.close(self._fd)
        unsent = len(self._queue)
        self._queue.clear()
        self._decoder = Decoder(MAX_REQUEST_HEADER_BYTES, MAX_REQUEST_BODY_BYTES)
        self._is_reading, self._is_writing, self.sent_bytes = True, False, 0
        self.open(fd, self._loop)
        self._tell_of_room()
        return unsent

    def _forget_files(self) -> None:
        """Close descriptors that came, and expect none: the next host asks for that anew."""
        if self._receiving is not None:
            self._receiving.detach()
            self._receiving = None
        for number in self._files:
            os.close(number)
        self._files = []

    @property
    def is_full(self) -> bool:
        """Whether producers should hold back."""
        return len(self._queue) >= QUEUE_BYTES

    def wait_for_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the host has taken enough."""
        self._waiting.append(callback)

    def send(self, header: Header, body: bytes = b"") -> None:
        """Queue one frame; the loop flushes at the end of its round. Raises Refusal."""
        try:
            frame = encode(header, body)
        except (ValueError, RecursionError):
            raise Refusal("internal", "answer: its header cannot be written as JSON") from None
        if len(frame) - len(body) > MAX_EVENT_HEADER_BYTES:
            # The host would have to take this for an attack and kill the sandbox.
            raise Refusal("too_large", f"answer: header over {MAX_EVENT_HEADER_BYTES} bytes")
        self._queue += frame

    def expect_files(self) -> None:
        """Take descriptors that come with a frame from now on; `files` has them."""
        if self._receiving is None:
            kind = _socket.SOCK_STREAM
            self._receiving = _socket.socket(_socket.AF_UNIX, kind, 0, self._fd)

    def take_files(self, count: int) -> list[int]:
        """Return the descriptors that came with the frame that is being handled; own them.

        The frame says how many: more may have come with later frames that were read together.
        """
        taken, self._files = self._files[:count], self._files[count:]
        return taken

    def take_over(self, unread: bytes, unsent: bytes) -> None:
        """Continue after `first_program` has used the descriptor. Raises FrameError."""
        self._queue[:0] = unsent
        for header, body in self._decoder.feed(unread):
            self._on_frame(header, body)

    def pause(self) -> None:
        """Read no further requests until `resume`."""
        self._is_reading = False
        self._update()

    def resume(self) -> None:
        """Read requests again."""
        self._is_reading = True
        self._update()

    def flush(self) -> None:
        """Write to the host as much as it takes now."""
        if self._queue and not self._is_writing:
            self._write()

    def _on_ready(self, events: int) -> None:
        if events & WRITE:
            self._write()
        if events & ~WRITE:
            self._read()

    def _on_out(self, events: int) -> None:
        if events & ~WRITE:
            raise HostGone  # the host does not read any more
        self._write()

    def _read(self) -> None:
        try:
            data = self._received()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise HostGone from error
        if not data:
            raise HostGone
        for header, body in self._decoder.feed(data):
            self._on_frame(header, body)

    def _received(self) -> bytes:
        if self._receiving is None:
            return os.read(self._fd, _READ_BYTES)
        data, ancillary, _flags, _from = self._receiving.recvmsg(
            _READ_BYTES, _ROOM_FOR_FILES, MSG_CMSG_CLOEXEC
        )
        self._files += descriptors_in(ancillary)
        return data

    def _write(self) -> None:
        try:
            with memoryview(self._queue) as view:
                sent = os.write(self._out_fd, view)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            raise HostGone from error
        del self._queue[:sent]
        self.sent_bytes += sent
        if bool(self._queue) != self._is_writing:
            self._is_writing = bool(self._queue)
            self._update()
        if self._waiting and len(self._queue) <= QUEUE_BYTES // 2:
            self._tell_of_room()

    def _tell_of_room(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _update(self) -> None:
        assert self._loop is not None  # noqa: S101  for the type checker only
        reading, writing = READ if self._is_reading else 0, WRITE if self._is_writing else 0
        if self._out_fd == self._fd:
            self._loop.change(self._fd, reading | writing)
        else:
            self._loop.change(self._fd, reading)
            self._loop.change(self._out_fd, writing)
