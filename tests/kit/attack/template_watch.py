"""Who opens or executes what of a template: told by the kernel, before it happens (fanotify(7)).

A program of its own, for a process that answers for its own opens while it waits for one of them
to be answered would wait for ever. Called with a file system and a folder on it; each opening on
that file system waits until this has looked who it is. Writes one JSON line for each that is in
our pid namespace, to whoever reads it after the end of standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import struct
import sys
from typing import Any

_CONTENT_CLOEXEC = 0x4 | 0x1
_ADD_FILESYSTEM = 0x1 | 0x100
_OPEN, _OPEN_EXEC = 0x10000, 0x40000
_EVENT = struct.Struct("=IBBHQii")
_ANSWER = struct.Struct("=iI")


def main() -> None:
    place, folder = sys.argv[1:]
    library = ctypes.CDLL(None, use_errno=True)
    watch = library.fanotify_init(_CONTENT_CLOEXEC, os.O_RDONLY | os.O_CLOEXEC | os.O_LARGEFILE)
    mask = ctypes.c_uint64(_OPEN | _OPEN_EXEC)
    if watch < 0 or library.fanotify_mark(watch, _ADD_FILESYSTEM, mask, -100, place.encode()):
        print(os.strerror(ctypes.get_errno()), flush=True)
        return
    print("watching", flush=True)
    seen: dict[str, None] = {}
    while True:
        ready, _, _ = select.select([watch, 0], [], [])
        if watch in ready:
            for line in _looked_at(watch, folder):
                seen[line] = None
        elif not os.read(0, 1):
            break
    print("\n".join(seen), flush=True)


def _looked_at(watch: int, folder: str) -> list[str]:
    found, events = [], os.read(watch, 65536)
    while events:
        length, _, _, _, mask, fd, pid = _EVENT.unpack_from(events)
        events = events[length:]
        with contextlib.suppress(OSError):
            who = _told(pid, fd, mask & _OPEN_EXEC != 0)
            if who["space"] == os.readlink("/proc/self/ns/pid") and folder in who["path"]:
                found.append(json.dumps(who))
        os.write(watch, _ANSWER.pack(fd, 1))
        os.close(fd)
    return found


def _told(pid: int, fd: int, is_executed: bool) -> dict[str, Any]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = os.fsdecode(file.read()).split("\0")[:-1]
    return {
        "pid": pid,
        "space": os.readlink(f"/proc/{pid}/ns/pid"),
        "exe": os.readlink(f"/proc/{pid}/exe"),
        "words": words,
        "path": os.readlink(f"/proc/self/fd/{fd}"),
        "executed": is_executed,
    }


if __name__ == "__main__":
    main()
