"""The first program of a sandbox, served in one stretch of code; most sandboxes run no second.

`init/main.py` calls this before its event loop. It is no second protocol: it does what
`contexts.py`, `context_connections.py` and `pipes.py` would do for one `execute` without input.
When anything else happens, it stops and hands its state (`Stretch`) over to them, in the middle of
a run if need be. Why: after a fork each object that is touched is a page to copy, and the general
machinery touches four hundred. Nothing here may touch what the usual case can do without.
"""

from __future__ import annotations

import os
import select

from cellwall.guest.channel.frames import LENGTHS, encode, parse_header
from cellwall.guest.channel.handshake import GO, IDLE, USUAL_CONTEXTS, ready
from cellwall.guest.process import exit_watch, prefault, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_READ_BYTES = 64 * 1024
_READABLE = select.POLLIN
_GATHER_MS = 1
"""Milliseconds to wait after passing output on; any other event ends the wait at once."""


class Stretch:
    """The state of the stretch. Descriptors are -1 once closed."""

    def __init__(self, pid: int, stdout: int, stderr: int, line: int) -> None:
        """A context has just been forked; `line` is init's end of its first connection."""
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.line = line
        self.is_ready = False
        """Whether the context is idle and the host has been told."""
        self.header: dict[str, Any] | None = None
        """Header of the `execute` that the context has been given."""
        self.passed = [0, 0]
        """Bytes of stdout and stderr that were sent to the host."""
        self.left: tuple[int, bytes] | None = None
        """Bytes read from stdout (0) or stderr (1), and not yet counted or sent."""
        self.unread = b""
        """Bytes received from the host and not understood here."""
        self.unsent = b""
        """Bytes that the host did not take at once."""
        self.end: tuple[int, Any] | None = None
        """Wait status and rusage of the context."""
        self.may_be_foreseen = False
        """Whether the context's end counts as soon as it is certain, maybe before it is reaped."""
        self.has_interpreter = False
        """Whether the program runs in another process, the only child of the context's."""
        self.is_done = False
        """Whether the host knows how the program ended."""


_USUAL_READY = encode(ready(USUAL_CONTEXTS))


def nothing() -> None:
    """Do nothing; the default for a caller with no work before the first request."""


def serve(
    stretch: Stretch,
    channel: int,
    wakeup: int,
    listener: int,
    meanwhile: Callable[[], None] = nothing,
) -> None:
    """Serve as far as the usual case goes and record the state in `stretch`.

    `wakeup` is readable when a child has ended, `listener` when the context connects. `meanwhile`
    is called while the host gets its request ready.
    """
    if os.read(stretch.line, _READ_BYTES) != IDLE:
        return
    os.write(channel, _USUAL_READY)
    stretch.is_ready = True
    meanwhile()
    prefault.while_waiting(channel, prefault.INIT)
    _start(stretch, channel, os.read(channel, _READ_BYTES))
    if stretch.header is not None:
        os.set_blocking(channel, False)
        _follow(stretch, channel, wakeup, listener)


def _start(stretch: Stretch, channel: int, data: bytes) -> None:
    """Pass on a request that is complete and asks for no more than is done here.

    The program of a `held` request begins when the host says so; all else is done before.
    """
    stretch.unread = data
    if len(data) < LENGTHS.size:
        return
    header_length, body_length = LENGTHS.unpack_from(data)
    size = LENGTHS.size + header_length + body_length
    request, rest = data[:size], data[size:]
    if len(request) != size:
        return
    header = parse_header(data[LENGTHS.size : LENGTHS.size + header_length])
    is_held = bool(header.get("held"))
    if (
        (rest and not is_held)
        or header.get("op") != "execute"
        or header.get("mode") != "program"
        or header.get("context") != "main"
        or header.get("stdin") != "none"
        or type(header.get("id")) is not int
        or type(header.get("output_bytes")) is not int
    ):
        return
    # The context reads from it the fields that it needs.
    is_there = _has_passed_on(stretch.line, request)
    if is_held:
        if (rest or os.read(channel, _READ_BYTES)) != GO:
            os._exit(1)  # the host is gone, or it does not keep the protocol
        is_there = is_there and _has_passed_on(stretch.line, GO)
    if not is_there:
        # The general machinery finds out how the context ended; the host has allowed the start by
        # now.
        stretch.unread = encode({**header, "held": False}, data[size - body_length : size])
        return
    os.close(stretch.line)
    stretch.line = -1
    stretch.unread = b""
    stretch.header = header


def _has_passed_on(line: int, data: bytes) -> bool:
    """Write all of `data`; return False if the context is gone."""
    rest = data
    try:
        while rest:
            rest = rest[os.write(line, rest) :]
    except OSError:
        return False
    return True


def _follow(stretch: Stretch, channel: int, wakeup: int, listener: int) -> None:
    """Pass output on until the program ends, and tell the host how it ended."""
    poller, patience = select.poll(), select.poll()
    for fd in (wakeup, channel, listener):
        poller.register(fd, _READABLE)
        patience.register(fd, _READABLE)
    for fd in (stretch.stdout, stretch.stderr):
        poller.register(fd, _READABLE)
    is_quiet = is_over = False
    while not (is_over and is_quiet):
        # One more round after its end: what it printed last is still in the pipes.
        is_over, is_quiet = stretch.end is not None, True
        for fd, events in poller.poll(None if stretch.end is None else 0):
            if fd == wakeup:
                if not _hear_the_end(stretch, wakeup, listener):
                    return
            elif not events & _READABLE:
                poller.unregister(fd)  # the other end has no holder any more
            elif fd in (channel, listener) or not _pass_on(stretch, fd, channel):
                return
            else:
                is_quiet = False
        if not is_quiet and stretch.end is None:
            # A thousand lines need not be a thousand frames: let some gather.
            patience.poll(_GATHER_MS)
    _tell_end(stretch, channel)
    _stay(stretch, wakeup, patience)


def _pass_on(stretch: Stretch, fd: int, channel: int) -> bool:
    """Send what was printed; return False when that takes more than can be done here."""
    data = os.read(fd, _READ_BYTES)
    which = int(fd == stretch.stderr)
    passed = stretch.passed[which] + len(data)
    header = stretch.header
    assert header is not None  # noqa: S101  for the type checker only
    if not data or len(data) == _READ_BYTES or passed > header["output_bytes"]:
        stretch.left = (which, data)
        return False
    stretch.passed[which] = passed
    text = b'{"ev":"stderr","id":%d}' if which else b'{"ev":"stdout","id":%d}'
    return _send(stretch, channel, text % header["id"], data)


def _send(stretch: Stretch, channel: int, header: bytes, body: bytes) -> bool:
    frame = LENGTHS.pack(len(header), len(body)) + header + body
    try:
        sent = os.write(channel, frame)
    except OSError:
        sent = 0  # full, or the host is gone: the machinery finds out
    stretch.unsent = frame[sent:]
    return sent == len(frame)


def _stay(stretch: Stretch, wakeup: int, others: select.poll) -> None:
    """Wait for further events; as a rule the host kills this process meanwhile."""
    if stretch.may_be_foreseen:
        others.unregister(wakeup)  # the end that was reported early may still be to come
        exit_watch.step_back()
    others.poll()


def _hear_the_end(stretch: Stretch, wakeup: int, listener: int) -> bool:
    """Reap every child that ended: the context, and orphans that became init's.

    If there was none, a process announces that it is about to end. Return False if that takes more
    than can be done here: where callers are known by their pid alone, their connections must be
    accepted before they are reaped.
    """
    os.read(wakeup, 4096)
    has_reaped = False
    while (pid := processes.ended_child()) is not None:
        is_context = pid == stretch.pid and stretch.end is None
        if is_context and _is_called(listener):
            return False  # init looks at its children as soon as it takes over
        _, status, usage = os.wait4(pid, 0)
        has_reaped = True
        if is_context:
            stretch.end = (status, usage)
    if not has_reaped and stretch.may_be_foreseen and stretch.end is None:
        _look_ahead(stretch, listener)
    return True


def _is_called(listener: int) -> bool:
    calls = select.poll()
    calls.register(listener, _READABLE)
    return bool(calls.poll(0))


def _look_ahead(stretch: Stretch, listener: int) -> None:
    """Record the context's end as soon as it is certain, unless the context has connected."""
    pid = exit_watch.only_child(stretch.pid) if stretch.has_interpreter else stretch.pid
    status = None if pid is None else exit_watch.foreseen(pid)
    if pid is None or status is None:
        return
    if not _is_called(listener):
        stretch.end = (status, exit_watch.Usage(stretch.pid))


def _tell_end(stretch: Stretch, channel: int) -> None:
    """Send `done`, as `Execution.finish` would."""
    header, end = stretch.header, stretch.end
    assert header is not None  # noqa: S101  for the type checker only
    assert end is not None  # noqa: S101  likewise
    status, usage = end
    is_killed = os.WIFSIGNALED(status)
    text = _DONE % (
        header["id"],
        b"null" if is_killed else b"%d" % os.WEXITSTATUS(status),
        b"%d" % os.WTERMSIG(status) if is_killed else b"null",
        int(usage.ru_utime * 1_000_000),
        int(usage.ru_stime * 1_000_000),
        usage.ru_maxrss,
    )
    stretch.is_done = True
    _send(stretch, channel, text, b"")


_DONE = (
    b'{"ev":"done","id":%d,"exit_code":%b,"signal":%b,"alive":false,"raised":false,'
    b'"cut":{"stdout":0,"stderr":0,"display":0,"stdin":0},'
    b'"rusage":{"user_us":%d,"system_us":%d,"maxrss_kib":%d}}'
)
