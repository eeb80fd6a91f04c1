"""Tries an action in a throw-away child process, so that nothing of it outlives the call.

Runs in the engine process, for `probe` and `subordinate_ids`. The invariant: the child never goes
on as a second embedder.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import NoReturn

_TRIAL_S = 20.0
"""Most seconds of one trial, which usually takes milliseconds."""


def trial(action: Callable[[], None]) -> str:
    """Run `action` in a child; return "" if it succeeded, else the error's text.

    The child is a copy of the embedder. It does not have the embedder's threads, but locks that
    they held stay locked. So it runs nothing but `action`, never returns, and the wait for it is
    bounded.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try(action, write_end)
    os.close(write_end)
    ended = select.poll()  # select(2) supports descriptors up to 1023
    ended.register(read_end, select.POLLIN)
    with os.fdopen(read_end, "rb") as pipe:
        if not ended.poll(_TRIAL_S * 1000):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"the trial did not end within {_TRIAL_S:.0f} s"
        text = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    return text if status == 0 else f"the trial ended with status {status}"


def _try(action: Callable[[], None], write_end: int) -> NoReturn:
    status = 1
    try:
        text = ""
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - reported; nothing goes on in this copy
            text = str(error) if isinstance(error, OSError) else repr(error)
        os.write(write_end, text.encode("utf-8", "replace")[:4096])
        status = 0
    finally:
        os._exit(status)
