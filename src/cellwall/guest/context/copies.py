"""A context's part in being copied, and in becoming a copy of another (design/0041).

Used by `context/main.py` between cells, when init asks for it. To be copied, a context stands still
and writes its image, or makes a clone of itself that does so, and goes on. To become a copy it
stands still, too, and when it returns, its memory is the other one's: `_wake` then gives that
memory this process's socket, and fresh seeds.
"""

from __future__ import annotations

# The C module under `signal`: its masks need no enum members, which a fork would copy.
import _signal  # type: ignore[import-not-found]  # typeshed does not know it
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from cellwall.guest.channel.frames import encode
from cellwall.guest.transplant import walker

if TYPE_CHECKING:
    from typing import Any

    from cellwall.guest.channel.init_link import Link
    from cellwall.guest.context import dropping

_PR_GET_TID_ADDRESS = 40
_MOST_MAIL_BYTES = walker.PAGE
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def serve(link: Link, header: dict[str, Any], loop: Any) -> bool:  # noqa: ANN401  asyncio's
    """Do what `header` asks; return True in a process that has become a copy.

    `loop` is the event loop that cells share; None if there is none.
    """
    if header["op"] == "copy":
        return _be_copied(link, header, loop)
    return _make_ready(link, header)


def _be_copied(link: Link, header: dict[str, Any], loop: Any) -> bool:  # noqa: ANN401  asyncio's
    """Have the image written; return True where it came alive."""
    request = header["request"]
    files = link.receive_files()
    timers = [signal.getitimer(which) for which in _TIMERS]
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    scratch = None
    other = link.another()
    try:
        other.connect()
        scratch = walker.Scratch()
        told: dict[str, Any] = {
            "files": files,
            "link": other.fileno(),
            "own": [link.fileno(), *_descriptors_of(loop)],
        }
        told["tid_address"] = _tid_address()
        said = {"ev": "copy", "request": request, **told}
        result, alone = _stood(scratch, other.fileno(), said, bool(header.get("drop_threads")))
        if result == walker.IS_COPY:
            other.forget()
            _renew(loop)
            _wake(link, timers)
            if alone is not None:
                alone.give_up()
            return True
        if result == walker.FAILED:
            _signal.sigtimedwait((signal.SIGPIPE,), 0)  # else it comes with the old mask
            raise scratch.error()
        answer = {"ev": "copied", "pid": result}
        if alone is not None:
            answer["held"] = alone.why
    except OSError as error:
        answer = {"ev": "copied", "errno": error.errno, "why": str(error.strerror)}
    finally:
        if scratch is not None:
            walker.unmap()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    for number in files:
        os.close(number)
    other.close()
    link.send({**answer, "request": request})
    return False


def _stood(
    scratch: walker.Scratch, descriptor: int, said: dict[str, Any], drops: bool
) -> tuple[int, dropping.Parked | None]:
    """Stand still to be copied, or have a process without other threads do it; return what came.

    As `Scratch.park`, and the second if there was one.
    """
    if not drops or len(os.listdir("/proc/self/task")) == 1:
        return scratch.park(_said_first(descriptor, said), returns=True), None
    from cellwall.guest.context import dropping

    said["threads"] = dropping.told()
    alone = dropping.parked(lambda: _stands_alone(scratch, descriptor, said))
    return alone.pid, alone


def _stands_alone(scratch: walker.Scratch, descriptor: int, said: dict[str, Any]) -> bool:
    """Stand still as a process without the context's other threads; true in the copy."""
    first = _said_first(descriptor, {**said, "pid": os.getpid()})
    return scratch.park(first) == walker.IS_COPY


def _said_first(descriptor: int, message: dict[str, Any]) -> bytes:
    """Return the list that says a message to init, and goes on with the list that init sends."""
    frame = encode(message)
    place = walker.put(walker.MAILBOX + _MOST_MAIL_BYTES, frame)
    return walker.record(
        "write", descriptor, place, len(frame), expected=len(frame)
    ) + walker.record(walker.RECEIVE, descriptor, walker.LIST)


def _make_ready(link: Link, header: dict[str, Any]) -> bool:
    """Stand still until init has made this process another one; only that one returns."""
    files = [*link.receive_files(), link.fileno()]
    numbers = [int(number) for number in header["numbers"]]
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    for number, place in zip(files, numbers[1:]):  # the file of the image comes later
        os.dup2(number, place, False)
        os.close(number)
    scratch = walker.Scratch()
    address, is_named = link.origin
    mail = {"address": address, "is_named": is_named, "numbers": numbers}
    walker.put(walker.MAILBOX, json.dumps(mail).encode() + b"\0")
    scratch.park(_said_first(numbers[2], {"ev": "parked"}))
    os._exit(walker.EXIT_FAILED)  # not reached: the list ends in another process's memory


def _wake(link: Link, timers: list[tuple[float, float]]) -> None:
    """Make the memory of the process that was copied this process's own."""
    mail = json.loads(ctypes.string_at(walker.MAILBOX))
    *files, connection = mail["numbers"]
    reseed = ctypes.c_uint64.from_address(walker.RESEED).value
    for number in files:
        os.close(number)
    lowest = fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(connection)
    link.move(mail["address"], lowest, is_named=mail["is_named"])
    for which, (delay, interval) in zip(_TIMERS, timers):
        if delay:
            signal.setitimer(which, delay, interval)
    if reseed:
        reseed_all()


def reseed_all() -> None:
    """Renew the generators that programs share; those that a program has made itself go on."""
    from cellwall.guest.process import reseed

    reseed.apply()
    ssl: Any = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)


def _descriptors_of(loop: Any) -> list[int]:  # noqa: ANN401  asyncio's
    """Return the descriptors of an event loop of asyncio's own kind, which a copy makes anew."""
    if getattr(loop, "_csock", None) is None:
        return []
    return [loop._selector.fileno(), loop._ssock.fileno(), loop._csock.fileno()]


def _renew(loop: Any) -> None:  # noqa: ANN401  asyncio's
    """Give an event loop a selector and a way to be woken up of this process's own.

    Before this process opens anything: the old selector would close a number that is another's.
    """
    if getattr(loop, "_csock", None) is None:
        return
    import selectors

    with contextlib.suppress(OSError):  # there is none of that number, and it forgets it
        loop._selector.close()
    for each in (loop._ssock, loop._csock):
        each.detach()
    loop._selector = selectors.DefaultSelector()
    loop._internal_fds = 0
    loop._make_self_pipe()


def _tid_address() -> int:
    """Return where libc keeps this thread's id; 0 where the kernel does not say, prctl(2)."""
    address = ctypes.c_uint64()
    if ctypes.CDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        return 0
    return int(address.value)
