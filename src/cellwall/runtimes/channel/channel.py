"""Guest channel: the engine's end (design/0002); framing, request ids, dispatch to listeners.

It does not interpret what arrives (`engine`) and is no transport: a runtime passes it a connected
stream socket. Everything it reads was written by hostile code, so each frame is checked (`frames`)
before a listener gets it; the first violation ends the channel and tells the owner to kill the
sandbox. The invariant: received data is trusted only to be of its type, and no frame makes host
memory grow without a cap.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.runtimes.channel.frames import FrameError, check_frame, parse_header, strict_json
from cellwall.runtimes.channel.loop_share import LARGE_BYTES, TURN_S, Hearing
from cellwall.runtimes.channel.replies import (
    FINAL,
    REPLY,
    REPLY_WITH_CHUNKS,
    ChannelLost,
    Listener,
    Reply,
    Single,
)
from cellwall.runtimes.channel.send_buffer import Backlog

if TYPE_CHECKING:
    from cellwall.runtimes.channel.stream import Stream

HEADER_CAP_BYTES = 64 * 1024
BODY_CAP_BYTES = 1024 * 1024
SEND_BODY_CAP_BYTES = 32 * 1024 * 1024
MOST_HELD_BYTES = 8 * 1024
"""`most_held_bytes` where the request arrives in one piece, so that init need not gather."""
MOST_SINGLE_BYTES = 1024 * 1024
"""`most_held_bytes` of a sandbox of a single program, whose context gathers it."""
_RECEIVE_BYTES = 256 * 1024
_WRITE_HIGH_BYTES = 1024 * 1024
_POLL_S = 0.05
"""Seconds of the loop's time for reading what had arrived before the engine ends the channel."""
_STRAY_FRAMES_CAP = 10_000
"""Maximum number of late frames after the engine gave a request up; more are hostile."""

_PREFIX = struct.Struct(">II")
T = TypeVar("T")


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - JSON
    return value


def _late(timeout_s: float) -> ChannelLost:
    return ChannelLost(f"guest channel: no ready event within {timeout_s:g} s")


_open_channels: weakref.WeakSet[GuestChannel] = weakref.WeakSet()


def abandon_all() -> None:
    """Close every channel's descriptor without touching an event loop; for a forked child.

    The child shares the parent's epoll instance: unregistering there would stop the parent's
    events.
    """
    for channel in list(_open_channels):
        channel.abandon()


_threads = threading.local()


def _scratch() -> memoryview:
    """Return the thread's read buffer; each thread has one loop.

    `recv` would allocate the whole size for every frame, and fragment the heap.
    """
    try:
        found: memoryview = _threads.scratch
    except AttributeError:
        found = _threads.scratch = memoryview(bytearray(_RECEIVE_BYTES))
    return found


class GuestChannel:
    """One connection to one sandbox's init. Lives on the event loop it was made on."""

    takes_files = False
    """Whether a program's request may enclose its files."""
    most_held_bytes = -1
    """Maximum bytes of the body of a first program that is sent as `held` and begins with `go`, and
    of its header. None may be held where it is negative."""

    def __init__(
        self,
        sock: Stream,
        *,
        on_violation: Callable[[str], None] | None = None,
    ) -> None:
        """Own `sock` from now on; `on_violation` must kill the sandbox."""
        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._on_violation = on_violation
        self._in = bytearray()
        self.hearing = Hearing()
        """Account of the loop's time that the sandbox's frames may use. Code that reads on adds its
        time."""
        self._is_behind = False
        """Whether a whole frame may be buffered that was not dispatched yet."""
        self._taken = self._taken_bytes = 0
        """Numbers of frames, and of bytes in them, of this turn."""
        self._out = Backlog()
        self._room: list[asyncio.Future[None]] = []
        self._listeners: dict[int, tuple[Listener, frozenset[str]]] = {}
        self._last_id = 0
        self.copy_requests = 0
        """Number of the requests that serve copies of the sandbox."""
        self.is_for_files = False
        """Whether the guest takes descriptors that come with a frame."""
        self._held: list[bytes] | None = None
        """Frames that wait until the sandbox has been written down; None: none have to."""
        self._files: Sequence[int] = ()
        """Descriptors that go with the next frame."""
        self._stray = 0
        """Number of late frames since the engine last gave a request up. Only the engine resets it,
        so a guest that keeps sending reaches the cap."""
        self._pauses = 0
        self._lost: ChannelLost | None = None
        self._on_end: list[Callable[[], None]] = []
        self._ready: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        self.is_unready = False
        """Whether requests may be sent before the guest has reported that it is ready: nothing has
        begun."""
        self._patience: asyncio.TimerHandle | None = None
        """Timer that ends the channel if the guest is not ready by then."""
        self._loop.add_reader(self._fd, self._on_readable)
        _open_channels.add(self)

    # -- state -----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether requests can still be answered."""
        return self._lost is None

    @property
    def lost(self) -> ChannelLost | None:
        """Reason why the channel ended, or None while it is open."""
        return self._lost

    @property
    def listening(self) -> int:
        """Number of what waits for frames: requests, executions, connections, watches."""
        return len(self._listeners)

    @property
    def is_asked(self) -> bool:
        """Whether a request waits for its one reply."""
        return any(isinstance(listener, Single) for listener, _ in self._listeners.values())

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the channel ends, whatever the reason."""
        if self._lost is not None:
            self._loop.call_soon(callback)
        else:
            self._on_end.append(callback)

    async def wait_ready(self, timeout_s: float) -> Mapping[str, Any]:
        """Return the guest's `ready` header; `ChannelLost` if the channel ends or time runs out."""
        try:
            # Not `wait_for`: on 3.11 it loses a cancellation that comes together with the result.
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise _late(timeout_s) from None

    def expect_ready(self, timeout_s: float) -> None:
        """End the channel if the guest is not ready in time; return at once.

        Requests may be sent before the guest is ready; it handles them afterwards.
        """
        if not self._ready.done():
            self.is_unready = True
            self._patience = self._loop.call_later(timeout_s, self._lose_patience, timeout_s)

    def _lose_patience(self, timeout_s: float) -> None:
        self.poll()
        if not self._ready.done():
            self._end(_late(timeout_s))

    # -- asking ----------------------------------------------------------------------------

    def open(
        self,
        op: str,
        listener: Listener,
        expected: frozenset[str],
        fields: Mapping[str, Any],
        body: bytes = b"",
    ) -> int:
        """Send a request whose frames go to `listener`; return its id."""
        if self._lost is not None:
            raise self._lost
        self._last_id += 1
        number = self._last_id
        self._listeners[number] = (listener, expected)
        self.hearing.grant()
        self.send({**fields, "op": op, "id": number}, body)
        return number

    def on_violation(self, kill: Callable[[], None]) -> None:
        """Have `kill` called from now on if the guest breaks the protocol."""
        self._on_violation = lambda _reason: kill()

    def listen(self, number: int, listener: Listener, expected: frozenset[str]) -> None:
        """Have the frames of a request that was sent otherwise go to `listener`."""
        self._listeners[number] = (listener, expected)

    def go_on_after(self, number: int) -> None:
        """Continue a channel that init already serves: `number` is the last id that was used."""
        self._last_id = number
        if not self._ready.done():
            self._ready.set_result({})

    def go_past(self, number: int) -> None:
        """Use no id up to `number`: what has such a one was asked of an earlier guest."""
        self._last_id = max(self._last_id, number)

    @property
    def asked(self) -> int:
        """Number of requests so far but those that serve copies of the sandbox."""
        return self._last_id - self.copy_requests

    def go(self) -> None:
        """Begin the held request; nothing else may be sent before."""
        self.send({"op": "go"})

    def forget(self, number: int) -> None:
        """Drop further frames for request `number`."""
        if self._listeners.pop(number, None) is not None:
            self._stray = 0

    async def request(self, op: str, body: bytes = b"", **fields: object) -> Reply:
        """Send a request and wait for the one reply; `GuestRefused` if the guest sends `fail`."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        number = self.open(op, Single(future, None), REPLY, fields, body)
        try:
            return await future
        finally:
            self.forget(number)

    def open_transfer(
        self, op: str, fields: Mapping[str, Any], on_chunk: Callable[[bytes], None] | None = None
    ) -> tuple[int, asyncio.Future[Reply]]:
        """Start a `tree_put` or `tree_get`; the future is its final reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        expected = REPLY if on_chunk is None else REPLY_WITH_CHUNKS
        return self.open(op, Single(future, on_chunk), expected, fields), future

    def tell(self, op: str, **fields: object) -> None:
        """Send a request that has no answer; a `fail` for it is ignored."""
        self._last_id += 1
        self._stray = 0
        self.send({**fields, "op": op, "id": self._last_id})

    # -- for copies of the whole sandbox: `stand_by`, `copy_requests` --------------------------

    @property
    def carries_files(self) -> bool:
        """Whether descriptors can go with a request: only over a unix socket."""
        return isinstance(self._sock, socket.socket)

    def open_with_files(
        self,
        op: str,
        files: Sequence[int],
        listener: Listener,
        expected: frozenset[str],
        fields: Mapping[str, Any],
        body: bytes,
    ) -> int:
        """Send a request as `open` does, with descriptors, which stay the caller's.

        Nothing may be queued before it, and the guest must expect it.
        """
        self._files = files
        try:
            return self.open(op, listener, expected, {**fields, "files": len(files)}, body)
        finally:
            self._files = ()

    @property
    def last_id(self) -> int:
        """Id of the latest request."""
        return self._last_id

    def hold(self) -> None:
        """Send nothing until `let_go`; what is to be sent meanwhile waits in order."""
        self._held = []

    def let_go(self, first: Callable[[], T]) -> T:
        """Undo `hold`: call `first`, which may send, then send what waits; return its result."""
        held, self._held = self._held or [], None
        try:
            return first()
        finally:
            for each in held if self._lost is None else ():
                self._out.add(each)
            if self._out.nbytes and self._lost is None:
                self._loop.add_writer(self._fd, self._on_writable)
            else:
                self._wake_writers()

    def leave_socket(self) -> None:
        """Neither read nor write until `join_socket`: the guest ends now and comes back.

        The socket stays open: its end is the end of the guest, also in an image of it.
        """
        self.pause()
        self._loop.remove_writer(self._fd)

    def join_socket(self, sock: Stream) -> None:
        """Go on with the guest at the other end of another socket."""
        self._sock.close()
        self._in.clear()
        sock.setblocking(False)
        self._sock, self._fd = sock, sock.fileno()
        self.resume()

    def _send_first(self, head: bytes, body: bytes | memoryview) -> int:
        files, self._files = self._files, ()
        if files and isinstance(self._sock, socket.socket):
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
            return self._sock.sendmsg((head, body), [rights])
        return self._sock.sendmsg((head, body)) if body else self._sock.send(head)

    def send(self, header: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Write one frame now, or queue what the socket does not take."""
        if self._lost is not None:
            return
        if len(body) > SEND_BODY_CAP_BYTES:
            raise FrameError(f"a body of {len(body)} bytes is above {SEND_BODY_CAP_BYTES}")
        text = json.dumps(header, separators=(",", ":")).encode()
        head = _PREFIX.pack(len(text), len(body)) + text
        if self._held is not None:
            self._held.append(head + bytes(body))
            return
        if self._out.nbytes:
            self._out.add(head)
            self._out.add(body)
            return
        try:
            sent = self._send_first(head, body)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # The reader decides: there may be evidence (a last `done`) still to be read.
            self._loop.call_soon(self._on_write_failed, error)
            return
        if sent < len(head) + len(body):
            self._out.add(head[sent:])
            self._out.add(memoryview(body)[max(0, sent - len(head)) :])
            self._loop.add_writer(self._fd, self._on_writable)

    async def wait_writable(self, most_queued_bytes: int = _WRITE_HIGH_BYTES) -> None:
        """Return when at most that many bytes are queued; for callers that send a lot."""
        while self._lost is None and (
            self._held is not None or self._out.nbytes > most_queued_bytes
        ):
            future: asyncio.Future[None] = self._loop.create_future()
            self._room.append(future)
            await future
        if self._lost is not None:
            raise self._lost

    def _on_writable(self) -> None:
        try:
            while self._out.nbytes:
                self._out.drop(self._sock.send(self._out.first()))
        except BlockingIOError:
            pass
        except OSError as error:
            self._on_write_failed(error)
            return
        if not self._out.nbytes:
            self._loop.remove_writer(self._fd)
        if self._out.nbytes <= _WRITE_HIGH_BYTES:
            self._wake_writers()

    def _on_write_failed(self, error: OSError) -> None:
        self.poll()
        self._end(ChannelLost(f"guest channel: write failed: {error.strerror}"))

    def _wake_writers(self) -> None:
        for future in self._room:
            if not future.done():
                future.set_result(None)
        self._room.clear()

    # -- hearing ---------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading until `resume`: the guest then blocks, the host's memory does not grow."""
        self._pauses += 1
        if self._pauses == 1 and self._lost is None:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        if self._pauses == 0 and self._lost is None:
            self._loop.add_reader(self._fd, self._on_readable)
            if self._is_behind:
                self._loop.call_soon(self._on_readable)

    def poll(self) -> None:
        """Read what has already arrived; used before a kill, so that output is not lost."""
        until = time.perf_counter() + _POLL_S
        for _ in range(16):
            if self._lost is not None or not self._read_once(until):
                return

    def _on_readable(self) -> None:
        if self._pauses or self._lost is not None:
            return  # a call scheduled for buffered frames
        began, apart_s = time.thread_time(), Hearing.apart_s
        self._taken = self._taken_bytes = 0
        self._read_once(time.perf_counter() + TURN_S)
        if not self._taken:
            return  # an incomplete frame, or an invalid one
        spent_s, now = time.thread_time() - began, time.perf_counter()
        apart_s = Hearing.apart_s - apart_s
        pause_s = self.hearing.spend(now, spent_s, self._taken, self._taken_bytes, apart_s)
        if pause_s or self._is_behind:
            self._rest(pause_s)

    def _rest(self, pause_s: float) -> None:
        """Stop reading for `pause_s` seconds."""
        if self._lost is None:
            GuestChannel.pause(self)
            self._loop.call_later(pause_s, GuestChannel.resume, self)

    def take_apart(self, body: bytes, read: Callable[[Any], T] = _as_it_is) -> T:
        """Decode a reply's body after its turn and charge the time to the sandbox's account.

        `read` converts the decoded value. Raises `FrameError`.
        """
        if len(body) <= LARGE_BYTES:
            return read(strict_json(body))
        began_s = time.thread_time()
        try:
            return read(strict_json(body))
        finally:
            spent_s = time.thread_time() - began_s
            pause_s = self.hearing.spend(time.perf_counter(), spent_s, 0, 0, spent_s)
            if pause_s:
                self._rest(pause_s)

    def _read_once(self, until: float) -> bool:
        """Handle one read's data, or the buffered rest of one; False when there is nothing."""
        try:
            data = b"" if self._is_behind else self._read()
            if data is None:
                return False
            self._feed(data, until)
        except FrameError as error:
            self._violated(str(error))
            return False
        return True

    def _read(self) -> bytes | None:
        """Return the received bytes; None if there are none now or the channel has ended."""
        try:
            scratch = _scratch()
            data = bytes(scratch[: self._sock.recv_into(scratch)])
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self._end(ChannelLost(f"guest channel: read failed: {error.strerror}"))
            return None
        if not data:
            self._end(ChannelLost("guest channel: closed by the guest's end"))
            return None
        return data

    def _feed(self, data: bytes, until: float) -> None:
        """Dispatch each whole frame, until the turn ends."""
        buffer: bytes | bytearray = data
        if self._in:
            self._in += data
            buffer = self._in
        position, size = 0, len(buffer)
        self._is_behind = False
        while size - position >= _PREFIX.size and not self._is_behind:
            head, body = _PREFIX.unpack_from(buffer, position)
            if head > HEADER_CAP_BYTES or body > BODY_CAP_BYTES:
                raise FrameError(f"a frame of {head}+{body} bytes is above the cap")
            start = position + _PREFIX.size
            if size - start < head + body:
                break
            text = bytes(buffer[start : start + head])
            position = start + head + body
            self._dispatch(parse_header(text), bytes(buffer[start + head : position]))
            if self._lost is not None:
                return
            self._taken += 1
            self._taken_bytes += head + body
            self._is_behind = position < size and time.perf_counter() >= until
        if buffer is self._in:
            del self._in[:position]
        elif position < size:
            self._in += memoryview(data)[position:]

    def _dispatch(self, header: dict[str, Any], body: bytes) -> None:
        kind, number = check_frame(header)
        if kind == "ready":
            if self._ready.done():
                raise FrameError("ready came twice")
            self._ready.set_result(header)
            self.is_unready = False
            self._stop_waiting()
            return
        entry = self._listeners.get(number)
        if entry is None:
            self._stray += 1
            if number > self._last_id or self._stray > _STRAY_FRAMES_CAP:
                raise FrameError(f"event {kind} for a request that does not exist")
            return
        listener, expected = entry
        if kind not in expected:
            raise FrameError(f"event {kind} does not belong to this request")
        if kind in FINAL:
            del self._listeners[number]
        try:
            listener.on_frame(kind, header, body)
        except FrameError:
            # The frame was no end for the listener: `_end` has to notify it.
            self._listeners[number] = entry
            raise

    # -- ending ----------------------------------------------------------------------------

    def _violated(self, reason: str) -> None:
        if self._on_violation is not None:
            self._on_violation(reason)
        self._end(ChannelLost(f"guest channel: protocol violation: {reason}", is_hostile=True))

    def close(self, reason: str = "the sandbox was closed") -> None:
        """End the channel from the engine's side; idempotent."""
        self._end(ChannelLost(f"guest channel: {reason}"))

    def _end(self, error: ChannelLost) -> None:
        if self._lost is not None:
            return
        self._lost = error
        self._stop_waiting()
        self.hearing.close()
        _open_channels.discard(self)
        with contextlib.suppress(RuntimeError):  # the loop may already be closed at exit
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._sock.close()
        self._out.clear()
        self._in.clear()
        listeners, self._listeners = self._listeners, {}
        if not self._ready.done():
            self._ready.set_exception(error)
            # possibly no task waits; avoid asyncio's "never retrieved" log line
            self._ready.exception()
        for listener, _ in listeners.values():
            listener.on_lost(error)
        self._wake_writers()
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def abandon(self) -> None:
        """Close the descriptor and nothing else; see `abandon_all`."""
        self._lost = ChannelLost("guest channel: it belongs to the parent process")
        _open_channels.discard(self)
        fd = self._sock.detach()
        if fd >= 0:
            os.close(fd)
