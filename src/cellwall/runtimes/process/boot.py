"""Boot: the first process of a `process` sandbox, the guardian, with init as its child.

Runs in the template's interpreter out of a guest bundle, stdlib only, Python 3.8 and later; the
host imports only `descendants` from here. It confines nothing. It sets resource limits, becomes the
subreaper of all later processes and holds the read end of a leash, a pipe: when the host closes its
end, in whatever way the host ends, the guardian kills every descendant until none is left. The
invariant: the guardian ends last, so its end means that the sandbox is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def descendants(pid: int) -> list[int]:
    """Return the pids of all live descendants of `pid`, nearest first."""
    found: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop(0)
        for child in _children(parent):
            if child not in found:
                found.append(child)
                queue.append(child)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as stream:
                children += [int(word) for word in stream.read().split()]
    except OSError:  # the process ended meanwhile
        pass
    return children


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            limits[name] = min(value, hard)
        # The hard limit stays: a claim may raise the soft one again, from outside.
        resource.setrlimit(number, (limits[name], hard))


def _signal(pid: int, number: int, known: set[int]) -> None:
    """Signal `pid` if it still is the listed process: its parent must be in `known`."""
    try:
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError:
        return
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            parent = int(stream.read().rpartition(b")")[2].split()[1])
        if parent not in known:
            return
        if handle < 0:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass
    finally:
        if handle >= 0:
            os.close(handle)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_tree(root: int) -> None:
    """Kill every descendant of `root`, a subreaper and this process, until none is left.

    They are stopped first and killed second: a stopped process forks no more, so even a fork bomb
    ends. A process forked between listing and stopping is found in the next round.
    """
    while True:
        pids = descendants(root)
        if not pids:
            return
        known = {root, *pids}
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                _signal(pid, number, known)
        _reap()


def _guard(child: int, leash: int) -> None:
    """Wait for the leash or for init's end, then end the whole tree."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    poll = select.poll()
    poll.register(leash, select.POLLIN | select.POLLHUP)
    if hasattr(os, "pidfd_open"):
        poll.register(os.pidfd_open(child), select.POLLIN)
    poll.poll()
    end_tree(os.getpid())
    os._exit(0)


def main() -> None:
    """Read the configuration from fd 0 and become guardian and init."""
    config = json.loads(sys.stdin.buffer.read())
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C at the embedder's terminal must not end it
    os.setsid()
    os.umask(0o022)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _limit(config["rlimits"])
    os.chdir(config["guest"]["home"])

    import site

    site.main()  # `-S` kept the template's .pth files from running before the limits
    from cellwall.guest.init import main as init

    child = os.fork()
    if child:
        os.close(config["channel_fd"])
        _guard(child, config["leash_fd"])
    os.close(config["leash_fd"])
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    init.main(config["channel_fd"], config["guest"])
