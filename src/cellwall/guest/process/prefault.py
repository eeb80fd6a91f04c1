"""Copying ahead: a parked sandbox copies the pages that a run will write, while it waits.

A fork shares its parent's pages and pays for each page at its first write. A parked sandbox waits
for its first request; in that time init and its context each copy the pages that the usual run
writes to. `learn` finds these in a fork-server by watching a run. Nothing depends on them: a page
too many costs a page of memory, a page too few is copied at its first write, as ever.
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
"""Milliseconds to wait before copying.

A sandbox that was not parked has its request by then. If a sandbox was parked to replace one that
was used, the caller of the latter has its answer by then.
"""
_STRETCH = 8
"""Number of ranges that are copied at once."""
_RANGE = struct.Struct("=QQ")
"""Address and length of a range, in bytes."""
_MOST_RANGES = 4096
"""Maximum number of ranges; 200 are usual. A socket buffers this many before the peer reads."""
_ENTRY = struct.Struct("=Q")
_OWN = 1 << 63 | 1 << 56
_FILE = 1 << 61
"""Bits in /proc/PID/pagemap. `_OWN`: present and mapped exclusively; `_FILE`: page of a file."""
_READABLE = select.POLLIN
_PAGE = os.sysconf("SC_PAGE_SIZE")

pages: list[bytes] = [b"", b"", b""]
"""Packed ranges by index: of init, of a program's context, of a context with no init beside it."""
INIT, CONTEXT, ALONE = range(3)


def while_waiting(fd: int, whose: int) -> None:
    """Copy the pages of INIT, CONTEXT or ALONE a moment from now, until `fd` becomes readable."""
    if not pages[whose]:
        return
    poller = select.poll()
    poller.register(fd, _READABLE)
    if poller.poll(_MOMENT_MS):
        return
    from cellwall.guest.process import libc  # loaded where pages are known

    for number, (address, length) in enumerate(_RANGE.iter_unpack(pages[whose])):
        if number % _STRETCH == 0:
            # It takes a millisecond in all, and a run of another sandbox may want this CPU.
            os.sched_yield()
            if poller.poll(0):
                return
        libc.populate(address, length)


def learn(run: Callable[[], None], run_alone: Callable[[], None]) -> None:
    """Watch `run` in a fork of this process, which is init there and forks one context.

    `run_alone` is watched in another fork, as a context. Any failure in them costs only speed:
    nothing is copied ahead then.
    """
    _watch(2, lambda address: _be_watched(run, address, CONTEXT, INIT))
    _watch(1, lambda address: _be_watched(run_alone, address, ALONE))


def _watch(count: int, be_watched: Callable[[bytes], NoReturn]) -> None:
    """Run `be_watched` in a fork of this process, and take in `count` records that it sends."""
    from cellwall.guest.process import libc

    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        listener.bind("\0cellwall-ahead-" + os.urandom(16).hex())
        listener.listen()
        pid = libc.fork()
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
        if len(record) % _RANGE.size == 1:  # else the sender was ended meanwhile
            pages[record[0]] = record[1:]


def _hear(listener: _socket.socket) -> bytes:
    fd, _address = listener._accept()  # type: ignore[attr-defined]  # typeshed: of `socket` only
    with open(fd, "rb") as file:
        return file.read()


def _be_watched(
    run: Callable[[], None], address: bytes, context: int, init: int | None = None
) -> NoReturn:
    """Run as init or as a context. Contexts end by `os._exit`, and send their record first."""
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
    # Connect by name: a context inherits no descriptor.
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    line.connect(address)
    line.sendall(bytes([whose]) + written())
    line.close()


def written() -> bytes:
    """Return the memory ranges that this process shares with no other, without pages of files."""
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
