"""A clone of a context without its other threads: made by fork(2), and tried before it is kept.

Used by `copies` when a copy may leave threads behind. A raw clone of a process with threads can
hang: a thread that is not there keeps malloc, a file or a lock for itself. So the C library and
CPython make the process here (their handlers free what is theirs), a child of it tries every lock
that is left, and only a process whose locks are all free stands still to be copied. One that is
not is ended, the threads go on for a moment, and it is tried again; at last it is refused.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import gc
import io
import os
import select
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING, NamedTuple

from cellwall.guest.process import processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TRY_S = 3.0
"""Seconds for which a process is tried again while a thread holds something."""
_LONGEST_S = 5.0
"""Most seconds for one process: what the session does at a fork may never end."""
_BLOCKED_S = 0.5
"""Seconds after which a wait for a file is over."""
_PAUSE_S = 0.005
_MOST_NAMED = 100
_OMP_PAUSE_HARD = 2
_WORD = ctypes.sizeof(ctypes.c_size_t)
_HEADER_WORDS = 2
"""Words of an object's header: its references and its type."""
_LOCK, _IMPORT, _FILE = 10, 11, 12
_HELD = {
    _LOCK: "a lock",
    _IMPORT: "an import that has not ended",
    _FILE: "a file that it reads or writes",
}
"""What a thread holds, by the exit code of the process that found it."""
_FILES = (io.BufferedWriter, io.BufferedRandom, io.BufferedReader)


class Parked(NamedTuple):
    """A clone that stands still, as its source sees it, or as the copy does."""

    pid: int
    """Its number; 1 in the process that it became."""
    promises: list[Any]
    """In the copy: executors, and work of theirs that no thread will end."""
    why: str = ""
    """Why there is none, if the number is 0."""

    def give_up(self) -> None:
        """End the work that no thread will do, with an error; executors get threads again later."""
        module: Any = sys.modules.get("concurrent.futures.thread")
        for each in self.promises:
            with contextlib.suppress(Exception):  # a program may have changed any of it
                if issubclass(type(each), module._WorkItem):
                    _end(each.future)
                else:
                    _renew(each)


def told() -> list[list[Any]]:
    """Return number, name and kind of each thread that Python knows."""
    threading: Any = sys.modules.get("threading")
    known = [] if threading is None else list(threading._active.values())
    named = [[each.native_id, str(each.name)[:80], bool(each.daemon)] for each in known]
    return named[:_MOST_NAMED]


def parked(park: Callable[[], bool]) -> Parked:
    """Have a process without other threads stand still by `park`, which is true in the copy.

    It is a child of init. There is none if a thread does not let go of something in time. Raises
    OSError.
    """
    _end_pools()
    over = time.monotonic() + _TRY_S
    while True:
        found, code = _tried(park)
        if found.pid:
            return found
        if code not in _HELD:
            return found._replace(why="a process without its other threads does not end")
        if time.monotonic() >= over:
            return found._replace(why=f"one of its threads holds {_HELD[code]}")
        time.sleep(_PAUSE_S)


def _tried(park: Callable[[], bool]) -> tuple[Parked, int]:
    """Make one process; return its clone, or none and the process's exit code."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    random: Any = getattr(sys.modules.get("random"), "_inst", None)
    state = None if random is None else random.getstate()
    others = {*getattr(sys.modules.get("threading"), "_active", ())} - {_thread.get_ident()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 3.12 warns of a fork of a process with threads
            child = os.fork()
    except BaseException:
        os.close(reading)
        os.close(writing)
        raise
    if not child:
        if random is not None:
            random.setstate(state)  # a handler of its own has renewed it
        promises = _stand(park, (reading, writing), others)
        return Parked(1, promises), 0  # no number is closed here: they are the copy's
    os.close(writing)
    said = _said(reading, child)
    os.close(reading)
    return Parked(int(said or 0), []), _reaped(child)


def _said(reading: int, child: int) -> bytes:
    """Return what a process says of its clone; end it if it says nothing for too long."""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    if not poller.poll(_LONGEST_S * 1000):
        os.kill(child, signal.SIGKILL)
        return b""
    return os.read(reading, 32)


def _reaped(child: int) -> int:
    """Return the exit code of a process; 0 if a signal ended it, or a thread has its end."""
    try:
        return os.WEXITSTATUS(os.waitpid(child, 0)[1])
    except ChildProcessError:
        return 0


def _end_pools() -> None:
    """Have libraries of OpenMP end the threads that wait for work, which begin again with work.

    A process without them would wait for them for ever.
    """
    with open("/proc/self/maps", "rb") as maps:
        paths = {line.split(None, 5)[-1].strip() for line in maps if b"libgomp" in line}
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(os.fsdecode(path)).omp_pause_resource_all(_OMP_PAUSE_HARD)


# -- in the process without threads --------------------------------------------------------------


def _stand(park: Callable[[], bool], pipe: tuple[int, int], others: set[int]) -> list[Any]:
    """Leave a process that stands still, and end; return only in the one that it becomes."""
    code = 1
    try:
        things = gc.get_objects()
        _free_files(things, others)
        promises = _promises(things)
        del things
        code = _what_is_held()
        if not code:
            pid = processes.fork_quietly()
            if not pid:
                for number in pipe:
                    os.close(number)  # else the copy would have it
                if park():
                    return promises
                os._exit(1)
            os.write(pipe[1], b"%d" % pid)
    except BaseException:  # noqa: BLE001  it must end here, whatever it is
        code = 1
    os._exit(code)


def _free_files(things: list[Any], others: set[int]) -> None:
    """Let the files go that a thread which is not here was reading or writing.

    CPython has no way to do it. Each file notes the thread that holds it in the word after its
    lock, so one that a thread of `others` holds can be told; one of which this is not true stays
    held, and is found by the child that tries it.
    """
    streams = [getattr(each, "buffer", None) for each in (sys.stdin, sys.stdout, sys.stderr)]
    release = ctypes.pythonapi.PyThread_release_lock
    for each in (*streams, *things):
        if issubclass(type(each), _FILES):
            count = object.__sizeof__(each) // _WORD
            words = (ctypes.c_size_t * count).from_address(id(each))
            for place in range(_HEADER_WORDS + 1, count):
                if words[place] in others and words[place - 1]:
                    words[place] = 0
                    release(ctypes.c_void_p(words[place - 1]))


def _promises(things: list[Any]) -> list[Any]:
    """Return executors with threads, and the work that was given to them."""
    module: Any = sys.modules.get("concurrent.futures.thread")
    if module is None:
        return []
    kinds = (module.ThreadPoolExecutor, module._WorkItem)
    return [each for each in things if issubclass(type(each), kinds)]


def _what_is_held() -> int:
    """Return what a thread that is not here holds, found by a child that tries everything."""
    child = processes.fork_quietly()
    if child:
        status = os.waitpid(child, 0)[1]
        return _FILE if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    code = 1
    try:
        gc.unfreeze()  # else what was made before the fork-server's forks is not found
        code = _first_held(gc.get_objects())
    finally:
        os._exit(code)


def _first_held(things: list[Any]) -> int:
    if _is_importing():
        return _IMPORT
    waiting = set(map(id, _waiting(things)))
    kinds = (_thread.LockType, _thread.RLock)
    for thing in things:
        kind: Any = type(thing)
        if kind in kinds and id(thing) not in waiting:
            if not kind.acquire(thing, False):
                return _LOCK
            kind.release(thing)
    _try_files([thing for thing in things if issubclass(type(thing), _FILES)])
    return 0


def _is_importing() -> bool:
    """Report whether a module is being imported by another thread."""
    locks = [each() for each in list(sys.modules["_frozen_importlib"]._module_locks.values())]
    own = _thread.get_ident()
    return any(each is not None and each.owner not in (None, own) for each in locks)


def _waiting(things: list[Any]) -> list[Any]:
    """Return locks that are held and that nothing lacks.

    Those by which threads wait for a condition, and those that say that a thread lives.
    """
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return []
    conditions = [each for each in things if issubclass(type(each), threading.Condition)]
    waiters = [lock for each in conditions for lock in vars(each).get("_waiters", ())]
    lives = [getattr(each, "_tstate_lock", None) for each in threading._active.values()]
    return [*waiters, *lives]


def _try_files(files: list[Any]) -> None:
    """Take the lock of each file for a moment; a signal ends this process if one is held."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _BLOCKED_S)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    nothing = bytearray()
    for each in files:
        kind = next(kind for kind in _FILES if issubclass(type(each), kind))
        with contextlib.suppress(Exception):  # a file that is closed, or detached
            if kind is io.BufferedReader:
                kind.readinto(each, nothing)
            else:
                kind.write(each, nothing)


# -- in the copy ---------------------------------------------------------------------------------


def _end(future: Any) -> None:  # noqa: ANN401  concurrent.futures', which is not imported here
    if future.cancel():
        future.set_running_or_notify_cancel()
    elif not future.done():
        future.set_exception(RuntimeError("the thread that ran it was left behind by a copy"))


def _renew(executor: Any) -> None:  # noqa: ANN401  likewise
    import threading

    executor._threads = set()
    executor._idle_semaphore = threading.Semaphore(0)
    while not executor._work_queue.empty():
        executor._work_queue.get_nowait()
