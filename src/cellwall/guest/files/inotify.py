"""Watch a directory: report each change in it as one line of JSON.

A worker (`child_tasks.py`) runs this: it scans, it blocks, and its memory is its own. Init only
passes its output on, as fast as the host grants it. A host that does not grant in time loses
changes and is told so: the kernel's queue is the one that overflows.

The invariant: a directory is watched before it is listed, so nothing made in between is missed; and
a name that is already known is not reported as new when the kernel reports it, too.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.guest.channel.errors import Refusal, refusal_from

if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.files.child_tasks import Task

MOST_FOLDERS = 4096
MOST_NAMES = 20_000
_READ_BYTES = 64 * 1024
_PATIENCE_MS = 20
"""Milliseconds by which the second half of a move may follow the first."""

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT = 0x400, 0x800, 0x2000
_OVERFLOW, _IGNORED, _IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORIES, _NO_LINKS, _LINKED_ONLY = 0x1000000, 0x2000000, 0x4000000
_WANTED = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_MASK = _WANTED | _ONLY_DIRECTORIES | _LINKED_ONLY
_ROOT_IS_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT

_EVENT = struct.Struct("iIII")
_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_IS_DRAFT = re.compile(r"\.cw-[0-9a-f]{16}").fullmatch
"""Matches files that `files.py` is writing: only their rename is reported."""


class Event(NamedTuple):
    """One event as the kernel gives it."""

    watch: int
    mask: int
    cookie: int
    name: str


class Folder:
    """One watched directory."""

    def __init__(self, path: str, names: set[str] | None) -> None:
        """`path` is relative to the root; `names` are its entries, None if there are too many."""
        self.path = path
        self.names = names

    def inner(self, name: str) -> str:
        """Return the relative path of an entry."""
        return f"{self.path}/{name}" if self.path else name

    def knows(self, name: str) -> bool:
        """Return whether an entry of this name was there before."""
        return self.names is not None and name in self.names


def watching(path: str, recursive: bool) -> Task:
    """Return a task that reports changes of a directory until it is gone."""
    return lambda _input, output_w: Watching(path, recursive, output_w).run()


class Watching:
    """One watched directory, perhaps with everything below it."""

    def __init__(self, path: str, recursive: bool, output_w: int) -> None:
        """Lines go to `output_w`, which may block."""
        self._root = path
        self._is_recursive = recursive
        self._output_w = output_w
        self._fd = -1
        self._folders: dict[int, Folder] = {}
        self._names = 0
        self._is_incomplete = False
        self._lines: list[str] = []
        self._modified: set[str] = set()

    def run(self) -> Header:
        """Serve until the root is gone."""
        self._begin()
        self._say("watching", ".", is_directory=True)
        if self._is_incomplete:
            self._say("overflow", ".", is_directory=True)
        self._flush()
        is_there = True
        while True:
            for event, partner in _paired(self._read()):
                if event.mask & _OVERFLOW:
                    is_there = self._begin_again()
                    break
                is_there = self._take(event, partner)
                if not is_there:
                    break
            if not is_there:
                self._say("removed", ".", is_directory=True)
                self._flush()
                return {}
            self._flush()

    # -- watches -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        fd = _LIBC.inotify_init1(os.O_CLOEXEC)
        if fd < 0:
            raise _no_instance(ctypes.get_errno())
        self._fd = fd
        number = self._add(self._root, _MASK)
        if number < 0:
            code = ctypes.get_errno()
            raise refusal_from(OSError(code, os.strerror(code)), f"watch {self._root!r}")
        self._enter([(number, "")], is_reported=False)

    def _begin_again(self) -> bool:
        """Start anew after an overflow; all entries count as known. Return False if it is gone."""
        os.close(self._fd)
        self._folders.clear()
        self._names = 0
        self._say("overflow", ".", is_directory=True)
        try:
            self._begin()
        except Refusal:
            return False
        return True

    def _add(self, path: str, mask: int) -> int:
        number: int = _LIBC.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(mask))
        return number

    def _watch_below(self, path: str) -> None:
        """Watch a directory that was made below the root, and report everything in it."""
        pending: list[tuple[int, str]] = []
        if not self._queue(path, pending):
            self._say("overflow", path, is_directory=True)
        self._enter(pending, is_reported=True)

    def _queue(self, path: str, pending: list[tuple[int, str]]) -> bool:
        """Watch one directory, to be listed later; return False if its changes cannot be seen."""
        if len(self._folders) + len(pending) >= MOST_FOLDERS:
            return False
        number = self._add(f"{self._root}/{path}", _MASK | _NO_LINKS)
        if number >= 0:
            pending.append((number, path))
            return True
        return ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # already gone

    def _enter(self, pending: list[tuple[int, str]], is_reported: bool) -> None:
        """Learn the names in directories that are watched from now on, and in those below."""
        while pending:
            number, path = pending.pop()
            self._forget(number)
            folder = self._folders[number] = Folder(path, set())
            for name, is_directory in _entries(f"{self._root}/{path}"):
                if _IS_DRAFT(name):
                    continue
                self._learn(folder, name)
                inner = folder.inner(name)
                if is_reported:
                    self._say("created", inner, is_directory=is_directory)
                if is_directory and self._is_recursive and not self._queue(inner, pending):
                    self._is_incomplete = True
                    if is_reported:
                        self._say("overflow", inner, is_directory=True)

    def _learn(self, folder: Folder, name: str) -> None:
        if folder.names is None or name in folder.names:
            return
        if self._names >= MOST_NAMES:
            self._names -= len(folder.names)
            folder.names = None
            return
        folder.names.add(name)
        self._names += 1

    def _unlearn(self, folder: Folder, name: str) -> None:
        if folder.names is not None and name in folder.names:
            folder.names.remove(name)
            self._names -= 1

    def _forget(self, number: int) -> None:
        folder = self._folders.pop(number, None)
        if folder is not None and folder.names is not None:
            self._names -= len(folder.names)

    def _below(self, path: str) -> list[tuple[int, Folder]]:
        start = path + "/"
        return [
            (number, folder)
            for number, folder in self._folders.items()
            if folder.path == path or folder.path.startswith(start)
        ]

    # -- events ------------------------------------------------------------------------------------

    def _read(self) -> list[Event]:
        events = list(_parsed(os.read(self._fd, _READ_BYTES)))
        if _has_open_end(events):
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(_PATIENCE_MS):
                events += _parsed(os.read(self._fd, _READ_BYTES))
        return events

    def _take(self, event: Event, partner: Event | None) -> bool:
        """Report one event; return False when it is the end of the root."""
        folder = self._folders.get(event.watch)
        if folder is None:
            return True  # from a watch that was given up
        if event.mask & _IGNORED:
            self._forget(event.watch)
        elif event.mask & _ROOT_IS_GONE:
            return bool(folder.path)
        elif event.mask & _MOVED_FROM:
            self._on_moved(folder, event, partner)
        elif event.mask & (_CREATE | _MOVED_TO):
            self._on_created(folder, event)
        elif event.mask & _DELETE:
            self._on_removed(folder, event)
        elif event.mask & _MODIFY and event.name and not _IS_DRAFT(event.name):
            self._on_modified(folder.inner(event.name))
        return True

    def _on_created(self, folder: Folder, event: Event) -> None:
        if _IS_DRAFT(event.name):
            return
        path, is_directory = folder.inner(event.name), bool(event.mask & _IS_DIRECTORY)
        if folder.knows(event.name):
            # Seen when its directory was listed, unless an entry was moved over it from outside.
            if event.mask & _MOVED_TO and not is_directory:
                self._on_modified(path)
            return
        self._learn(folder, event.name)
        self._say("created", path, is_directory=is_directory)
        if is_directory and self._is_recursive:
            self._watch_below(path)

    def _on_removed(self, folder: Folder, event: Event) -> None:
        self._unlearn(folder, event.name)
        if _IS_DRAFT(event.name):
            return
        path, is_directory = folder.inner(event.name), bool(event.mask & _IS_DIRECTORY)
        self._say("removed", path, is_directory=is_directory)
        if is_directory:
            for number, _ in self._below(path):
                _LIBC.inotify_rm_watch(self._fd, number)
                self._forget(number)

    def _on_modified(self, path: str) -> None:
        # Small writes of a program to one file are one change for each round.
        if path not in self._modified:
            self._modified.add(path)
            self._say("modified", path)

    def _on_moved(self, source: Folder, event: Event, partner: Event | None) -> None:
        target = None if partner is None else self._folders.get(partner.watch)
        if partner is None or target is None:
            self._on_removed(source, event)
            return
        path, is_directory = target.inner(partner.name), bool(event.mask & _IS_DIRECTORY)
        was_there = target.names is None or partner.name in target.names
        self._unlearn(source, event.name)
        self._learn(target, partner.name)
        old = source.inner(event.name)
        if _IS_DRAFT(event.name):
            self._say("modified" if was_there else "created", path)
            return
        self._say("moved", old, to=path, is_directory=is_directory)
        if is_directory and self._is_recursive:
            self._follow(old, path)

    def _follow(self, old: str, new: str) -> None:
        """Change the path of a moved directory and of everything below it."""
        below = self._below(old)
        for _, folder in below:
            folder.path = new + folder.path[len(old) :]
        if not below:  # it was moved on before it could be watched
            self._watch_below(new)

    # -- lines -------------------------------------------------------------------------------------

    def _say(self, change: str, path: str, *, to: str = "", is_directory: bool = False) -> None:
        line: Header = {"change": change, "path": path, "directory": is_directory}
        if to:
            line["to"] = to
        self._lines.append(json.dumps(line) + "\n")
        if len(self._lines) >= 1000:
            self._flush()

    def _flush(self) -> None:
        text, self._lines = "".join(self._lines), []
        self._modified.clear()
        view = memoryview(text.encode("ascii"))
        while view:
            view = view[os.write(self._output_w, view) :]


def _no_instance(code: int) -> Refusal:
    if code == errno.EMFILE:
        message = (
            "watch: no inotify instance is left of this sandbox's (user.max_inotify_instances) "
        )
        return Refusal("busy", message + "or of the host's (fs.inotify.max_user_instances)")
    return refusal_from(OSError(code, os.strerror(code)), "watch")


def _entries(path: str) -> Iterator[tuple[str, bool]]:
    """Yield the names in a directory, and whether each is a directory itself."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.name, entry.is_dir(follow_symlinks=False)
    except OSError:
        return  # already gone, or not readable for init: the watch reports what it can


def _parsed(data: bytes) -> Iterator[Event]:
    position = 0
    while position < len(data):
        watch, mask, cookie, size = _EVENT.unpack_from(data, position)
        position += _EVENT.size
        name = data[position : position + size].rstrip(b"\0")
        position += size
        yield Event(watch, mask, cookie, os.fsdecode(name))


def _has_open_end(events: list[Event]) -> bool:
    """Return whether a move began whose second half has not been read."""
    seen = {event.cookie for event in events if event.mask & _MOVED_TO}
    return any(event.mask & _MOVED_FROM and event.cookie not in seen for event in events)


def _paired(events: list[Event]) -> Iterator[tuple[Event, Event | None]]:
    """Yield each event in order, a move's first half together with its second."""
    targets = {event.cookie: event for event in events if event.mask & _MOVED_TO}
    sources = {event.cookie for event in events if event.mask & _MOVED_FROM}
    for event in events:
        if event.mask & _MOVED_TO and event.cookie in sources:
            continue
        yield event, targets.get(event.cookie) if event.mask & _MOVED_FROM else None
