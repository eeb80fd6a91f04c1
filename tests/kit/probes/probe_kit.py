"""The probes' own tool: attempts that are tried one by one, each in a forked child.

Sent into sandboxes and to the controls in front of a probe file, never imported by tests. It
prints one line of JSON for each attempt; the test judges. The invariant: an attempt says REACHED
only after the kernel gave it what it asked for.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial

SETTING: dict[str, str] = {}  # filled in by the harness
NR: dict[str, int] = {}  # system call numbers of this machine, as well
CONTROL = ""  # which control this is; empty inside the sandbox

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
BAD = 0xFFFFFFFFFFFFF000
"""An address no process has."""

Work = Callable[[], object]
ATTEMPTS: list[tuple[str, str, str, Work]] = []


class Masked(Exception):
    """There is something of that name, and nothing in it."""


def attempt(case: str, control: str, what: str = "") -> Callable[[Work], Work]:
    """Register a function; `control` names the process in which it must reach its goal."""

    def register(work: Work) -> Work:
        ATTEMPTS.append((case, what or work.__name__, control, work))
        return work

    return register


def each(case: str, control: str, items: Sequence[str], work: Callable[[str], object]) -> None:
    """Register one attempt for each item."""
    ATTEMPTS.extend((case, item, control, partial(work, item)) for item in items)


def call(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call by name; raises OSError."""
    words = [ctypes.c_ulong(a & (1 << 64) - 1) if isinstance(a, int) else a for a in args]
    result = int(LIBC.syscall(ctypes.c_long(NR[name]), *words))
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def read(path: str) -> str:
    """Return what a file holds; an empty one is `Masked`."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    data = os.read(fd, 4096)
    if not data.strip():
        raise Masked
    return data.decode("utf-8", "replace")


def open_to_write(path: str) -> None:
    """Open, and write nothing: the opening is what has to be refused."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def _tried(work: Work, write_end: int) -> str:
    OURS.add(write_end)
    try:
        detail = work()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno)) + " "
    except Masked:
        return "MASKED "
    except BaseException as error:  # noqa: BLE001 - the harness must see it
        return f"BROKEN {error!r}"
    return f"REACHED {'' if detail is None else detail}"


OURS: set[int] = set()
"""The descriptors of ours in an attempt's process."""


def outcome(work: Work) -> str:
    """Run one attempt in a child and return its word and detail."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        signal.alarm(20)
        os.write(write_end, _tried(work, write_end).encode()[:4000])
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    return f"{signal.Signals(os.WTERMSIG(status)).name} " if os.WIFSIGNALED(status) else said


def main() -> None:
    """Try what concerns this place."""
    for case, what, control, work in ATTEMPTS:
        if CONTROL in {"", control}:
            word, _, detail = outcome(work).partition(" ")
            line = {"case": case, "what": what, "control": control, "word": word, "detail": detail}
            os.write(1, (json.dumps(line) + "\n").encode())
