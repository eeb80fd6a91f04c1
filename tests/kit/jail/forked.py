"""Run one function in a forked child and bring its answer back.

For tests of what can not be undone in a process: filters, Landlock, ids. Not a sandbox. The child
never returns into the test runner: every path ends in `os._exit`.
"""

from __future__ import annotations

import ctypes
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True)
class Ended:
    """How the child ended: what `work` returned (None if it did not get that far), and why."""

    answer: Any
    signal: int
    trace: str


def run(work: Callable[[], Any]) -> Ended:
    """Return what `work()` returned in a child with no_new_privs set."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(work, write_end)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = json.loads(pipe.read() or b"{}")
    _, status = os.waitpid(pid, 0)
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(said.get("answer"), signal, said.get("trace", ""))


def answer(work: Callable[[], Any]) -> Any:
    """Return what `work()` returned in a child; a child that failed fails the test."""
    ended = run(work)
    assert not ended.trace, ended.trace
    assert ended.signal == 0, f"the child was killed by signal {ended.signal}"
    return ended.answer


def _child(work: Callable[[], Any], write_end: int) -> None:
    said = "{}"
    try:
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        said = json.dumps({"answer": work()})
    except BaseException:  # noqa: BLE001 - reported to the parent, which fails the test
        said = json.dumps({"trace": traceback.format_exc()})
    finally:
        os.write(write_end, said.encode())
        os._exit(0)


def call(nr: int, *args: int) -> int:
    """Make one system call by number; return its errno, 0 if it succeeded."""
    words = [ctypes.c_ulong(word) for word in (*args, 0, 0, 0, 0, 0, 0)[:6]]
    ctypes.set_errno(0)
    return ctypes.get_errno() if LIBC.syscall(ctypes.c_long(nr), *words) == -1 else 0
