"""Copying ahead: what a run is known to write to is made a process's own while nobody waits.

A fork shares its parent's pages and pays for each that it writes to when it does. A parked sandbox
waits for its first request; in that time init and its context each take their copies of the pages
that the usual run writes to. `learn` finds out which these are, in a fork-server, with a run that
is watched; nothing depends on them: a page too many is a page of memory, one too few is copied
when it is written to, as ever.
"""

from __future__ import annotations

# The C module under `socket`: see `context_spawn`.
import _socket
import os
import select
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_MOMENT_MS = 10
"""A sandbox that was not parked has its request by then; and where one was parked because another
was used, whoever used that has the answer."""
_STRETCH = 8
"""Ranges that are copied at once."""
_RANGE = struct.Struct("=QQ")
"""Address and length, in bytes."""
_MOST_RANGES = 4096
"""Usual are 200. A socket takes as many before anybody reads from it."""
_ENTRY = struct.Struct("=Q")
_OWN = 1 << 63 | 1 << 56
_FILE = 1 << 61
"""Of an entry in /proc/PID/pagemap: present, mapped exclusively; page of a file."""
_READABLE = select.POLLIN
_PAGE = os.sysconf("SC_PAGE_SIZE")

pages: list[bytes] = [b"", b"", b""]
"""Ranges one after another: init's, those of the context of a program, and those of a context with
no init of ours beside it."""
INIT, CONTEXT, ALONE = range(3)


def while_waiting(fd: int, whose: int) -> None:
    """Copy the pages of INIT, CONTEXT or ALONE a moment from now, until `fd` becomes readable."""
    if not pages[whose]:
        return
    poller = select.poll()
    poller.register(fd, _READABLE)
    if poller.poll(_MOMENT_MS):
        return
    from cellwall.guest.process import libc as native  # loaded where pages are known

    for number, (address, length) in enumerate(_RANGE.iter_unpack(pages[whose])):
        if number % _STRETCH == 0:
            # It is a millisecond in all, and somebody else's run may want this CPU.
            os.sched_yield()
            if poller.poll(0):
                return
        native.populate(address, length)


def learn(run: Callable[[], None], run_alone: Callable[[], None]) -> None:
    """Watch `run` in a fork of this process, which is init there and forks one context.

    `run_alone` is watched in another fork: it is a context there. Whatever goes wrong in them
    costs speed only: then nothing is copied ahead.
    """
    _watch(2, lambda address: _be_watched(run, address, CONTEXT, INIT))
    _watch(1, lambda address: _be_watched(run_alone, address, ALONE))


def _watch(count: int, be_watched: Callable[[bytes], NoReturn]) -> None:
    """Have a fork of this process be watched, and take in what is told `count` times."""
    from cellwall.guest.process import libc as native

    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        listener.bind("\0cellwall-ahead-" + os.urandom(16).hex())
        listener.listen()
        pid = native.fork()
        if not pid:
            be_watched(listener.getsockname())
        os.waitpid(pid, 0)
        listener.setblocking(False)
        heard = [_hear(listener) for _ in range(count)]
    except OSError:
        return
    finally:
        listener.close()
    for record in heard:
        if len(record) % _RANGE.size == 1:  # else whoever told it was ended meanwhile
            pages[record[0]] = record[1:]


def _hear(listener: _socket.socket) -> bytes:
    fd, _address = listener._accept()  # type: ignore[attr-defined]  # typeshed: of `socket` only
    with open(fd, "rb") as file:
        return file.read()


def _be_watched(
    run: Callable[[], None], address: bytes, context: int, init: int | None = None
) -> NoReturn:
    """Be init, or a context. Contexts end by `os._exit`, and tell before they do."""
    leave = os._exit

    def tell_and_leave(code: int) -> NoReturn:
        try:
            _tell(address, context)
        finally:
            leave(code)

    try:
        os._exit = tell_and_leave  # type: ignore[assignment]  # in this fork
        run()
        if init is not None:
            _tell(address, init)
    finally:
        leave(0)


def _tell(address: bytes, whose: int) -> None:
    # By its name: a context has no descriptor of anybody's.
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    line.connect(address)
    line.sendall(bytes([whose]) + written())
    line.close()


def written() -> bytes:
    """The ranges of memory that this process shares with none, of what is nobody's file."""
    found: list[tuple[int, int]] = []
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, end in _writable():
            pagemap.seek(start // _PAGE * _ENTRY.size)
            entries = pagemap.read((end - start) // _PAGE * _ENTRY.size)
            for number, (entry,) in enumerate(_ENTRY.iter_unpack(entries)):
                if entry & (_OWN | _FILE) == _OWN:
                    _add(found, start + number * _PAGE)
    return b"".join(_RANGE.pack(*each) for each in found[:_MOST_RANGES])


def _add(ranges: list[tuple[int, int]], address: int) -> None:
    if ranges and sum(ranges[-1]) == address:
        ranges[-1] = (ranges[-1][0], ranges[-1][1] + _PAGE)
    else:
        ranges.append((address, _PAGE))


def _writable() -> list[tuple[int, int]]:
    found = []
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps.read().splitlines():
            place, permissions, _ = line.split(None, 2)
            if permissions == "rw-p":
                start, _, end = place.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found
