"""The first program of a sandbox, served in one stretch of code; most sandboxes run no second.

`init/main.py` calls this before its event loop. It is no second protocol: it does what
`contexts.py`, `context_connections.py` and `pipes.py` would do for one `execute` whose input, if it
has any, is enclosed.
When anything else happens, it stops and hands its state (`FirstProgram`) over to them, in the
middle of a run if need be. Why: after a fork each object that is touched is a page to copy, and the
general machinery touches four hundred. Nothing here may touch what the usual case can do without.
"""

from __future__ import annotations

import os
import select

from cellwall.guest.channel import progress
from cellwall.guest.channel.frames import LENGTHS, encode, parse_header
from cellwall.guest.channel.handshake import GO, IDLE, USUAL_CONTEXTS, ready
from cellwall.guest.process import exit_watch, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_READ_BYTES = 64 * 1024
_READABLE = select.POLLIN
_GATHER_MS = 1
"""Milliseconds to wait after passing output on; any other event ends the wait at once."""


class FirstProgram:
    """The state of the first program. Descriptors are -1 once closed."""

    def __init__(self, pid: int, stdout: int, stderr: int, connection_fd: int) -> None:
        """A context has just been forked; `connection_fd` is init's end of its first connection."""
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.connection_fd = connection_fd
        self.progress = progress.Progress()
        """IDLE once the host has been told that the context is."""
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


_USUAL_READY = encode(ready(USUAL_CONTEXTS))


def nothing() -> None:
    """Do nothing; the default for a caller with no work before the first request."""


def serve(
    program: FirstProgram,
    channel: int,
    wakeup: int,
    listener: int,
    meanwhile: Callable[[], None] = nothing,
) -> None:
    """Serve as far as the usual case goes and record the state in `program`.

    `wakeup` is readable when a child has ended, `listener` when the context connects. `meanwhile`
    is called while the host gets its request ready.
    """
    if os.read(program.connection_fd, _READ_BYTES) != IDLE:
        return
    os.write(channel, _USUAL_READY)
    program.progress.advance(progress.IDLE)
    meanwhile()
    _start(program, channel, os.read(channel, _READ_BYTES))
    if program.header is not None:
        os.set_blocking(channel, False)
        _follow(program, channel, wakeup, listener)


def _start(program: FirstProgram, channel: int, data: bytes) -> None:
    """Pass on a request that is complete and asks for no more than is done here.

    The program of a `held` request begins when the host says so; all else is done before.
    """
    program.unread = data
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
        or header.get("stdin") not in ("none", "enclosed")
        or type(header.get("id")) is not int
        or type(header.get("output_bytes")) is not int
    ):
        return
    # The context reads from it the fields that it needs.
    is_there = _has_passed_on(program.connection_fd, request)
    if is_held:
        program.progress.advance(progress.HANDED_OVER)
        if (rest or os.read(channel, _READ_BYTES)) != GO:
            os._exit(1)  # the host is gone, or it does not keep the protocol
        is_there = is_there and _has_passed_on(program.connection_fd, GO)
    if not is_there:
        # The general machinery finds out how the context ended; the host has allowed the start by
        # now.
        program.unread = encode({**header, "held": False}, data[size - body_length : size])
        return
    os.close(program.connection_fd)
    program.connection_fd = -1
    program.unread = b""
    program.header = header
    program.progress.advance(progress.RUNNING)


def _has_passed_on(connection_fd: int, data: bytes) -> bool:
    """Write all of `data`; return False if the context is gone."""
    rest = data
    try:
        while rest:
            rest = rest[os.write(connection_fd, rest) :]
    except OSError:
        return False
    return True


def _follow(program: FirstProgram, channel: int, wakeup: int, listener: int) -> None:
    """Pass output on until the program ends, and tell the host how it ended."""
    poller, patience = select.poll(), select.poll()
    for fd in (wakeup, channel, listener):
        poller.register(fd, _READABLE)
        patience.register(fd, _READABLE)
    for fd in (program.stdout, program.stderr):
        poller.register(fd, _READABLE)
    is_quiet = is_over = False
    while not (is_over and is_quiet):
        # One more round after its end: what it printed last is still in the pipes.
        is_over, is_quiet = program.end is not None, True
        for fd, events in poller.poll(None if program.end is None else 0):
            if fd == wakeup:
                if not _hear_the_end(program, wakeup, listener):
                    return
            elif not events & _READABLE:
                poller.unregister(fd)  # the other end has no holder any more
            elif fd in (channel, listener) or not _pass_on(program, fd, channel):
                return
            else:
                is_quiet = False
        if not is_quiet and program.end is None:
            # A thousand lines need not be a thousand frames: let some gather.
            patience.poll(_GATHER_MS)
    _tell_end(program, channel)
    _stay(program, wakeup, patience)


def _pass_on(program: FirstProgram, fd: int, channel: int) -> bool:
    """Send what was printed; return False when that takes more than can be done here."""
    data = os.read(fd, _READ_BYTES)
    which = int(fd == program.stderr)
    passed = program.passed[which] + len(data)
    header = program.header
    assert header is not None  # noqa: S101  for the type checker only
    if not data or len(data) == _READ_BYTES or passed > header["output_bytes"]:
        program.left = (which, data)
        return False
    program.passed[which] = passed
    text = b'{"ev":"stderr","id":%d}' if which else b'{"ev":"stdout","id":%d}'
    return _send(program, channel, text % header["id"], data)


def _send(program: FirstProgram, channel: int, header: bytes, body: bytes) -> bool:
    frame = LENGTHS.pack(len(header), len(body)) + header + body
    try:
        sent = os.write(channel, frame)
    except OSError:
        sent = 0  # full, or the host is gone: the machinery finds out
    program.unsent = frame[sent:]
    return sent == len(frame)


def _stay(program: FirstProgram, wakeup: int, others: select.poll) -> None:
    """Wait for further events; as a rule the host kills this process meanwhile."""
    if program.may_be_foreseen:
        others.unregister(wakeup)  # the end that was reported early may still be to come
    others.poll()


def _hear_the_end(program: FirstProgram, wakeup: int, listener: int) -> bool:
    """Reap every child that ended: the context, and orphans that became init's.

    If there was none, a process announces that it is about to end. Return False if that takes more
    than can be done here: where callers are known by their pid alone, their connections must be
    accepted before they are reaped.
    """
    os.read(wakeup, 4096)
    has_reaped = False
    while (pid := processes.ended_child()) is not None:
        is_context = pid == program.pid and program.end is None
        if is_context and _is_called(listener):
            return False  # init looks at its children as soon as it takes over
        _, status, usage = os.wait4(pid, 0)
        has_reaped = True
        if is_context:
            _note_end(program, status, usage)
    if not has_reaped and program.may_be_foreseen and program.end is None:
        _look_ahead(program, listener)
    return True


def _is_called(listener: int) -> bool:
    calls = select.poll()
    calls.register(listener, _READABLE)
    return bool(calls.poll(0))


def _look_ahead(program: FirstProgram, listener: int) -> None:
    """Record the context's end as soon as it is certain, unless the context has connected."""
    pid = exit_watch.only_child(program.pid) if program.has_interpreter else program.pid
    status = None if pid is None else exit_watch.poll_exit_status(pid)
    if pid is None or status is None:
        return
    if not _is_called(listener):
        _note_end(program, status, exit_watch.Usage(program.pid))


def _note_end(program: FirstProgram, status: int, usage: Any) -> None:  # noqa: ANN401  struct_rusage or exit_watch.Usage
    program.progress.advance(progress.ENDED)
    program.end = (status, usage)


def _tell_end(program: FirstProgram, channel: int) -> None:
    """Send `done`, as `Execution.finish` would."""
    header, end = program.header, program.end
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
    program.progress.advance(progress.REPORTED)
    _send(program, channel, text, b"")


_DONE = (
    b'{"ev":"done","id":%d,"exit_code":%b,"signal":%b,"alive":false,"raised":false,'
    b'"cut":{"stdout":0,"stderr":0,"display":0,"stdin":0},'
    b'"rusage":{"user_us":%d,"system_us":%d,"maxrss_kib":%d}}'
)
