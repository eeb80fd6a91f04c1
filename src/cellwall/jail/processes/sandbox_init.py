"""Stage C: from a fresh clone to a locked-down init, then the guest.

Called by `forkserver` in the child; never returns to it. Between the clone and the last line of
`_lock` the child reads only one byte, from the worker. SECURITY: moving a call behind that line
gives caller code a weaker jail. The steps:

    5d.1  close every descriptor but the channel     5d.5  lock down (`lockdown`, in its order)
    5d.2  wait until the worker has written our ids   5d.6  read an environment of our own, if we
    5d.3  become the user; private mounts                     have one; start the guest; it forks
    5d.4  own cgroup namespace: the worker was in     5d.7  say "L"; the host reads our posture and
          our cgroups when it cloned us                       theirs, and sends nothing more before
                                                              it has compared

"L" is not said earlier because it wakes the host: if the host wakes on this CPU, the start waits.
"""

from __future__ import annotations

import json
import os
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Dict

from cellwall.jail.plan import boot_id, executor, plan
from cellwall.jail.protocol import environment, fds
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import do_all

if TYPE_CHECKING:
    from cellwall.jail.processes.clone_request import CloneRequest
    from cellwall.jail.processes.forkserver import Worker


CHANNEL_FD = 3
STANDBY_FD = 63
"""Where a standby line is, if there is one: out of the way of what the steps open and close."""
FREE_FD = 4
"""Lowest free descriptor. The worker has 0, 1, 2 and one high number open, so the first descriptor
that it receives, the channel, is 3."""
OWN_CGROUP_NAMESPACE = (process.prepare_unshare(process.CLONE_NEWCGROUP),)
"""Call that makes a cgroup namespace. Its root is where this process is at the time: the sandbox's
cgroups, into which it was born."""


class Abandoned(Exception):
    """The host or the worker ended, or refused this sandbox, while it was being built."""


def main(worker: Worker, request: CloneRequest, channel: int, wait_r: int) -> None:
    """Build the sandbox, lock it down, report, and run the guest."""
    guest = request.guest
    guest["is_environment_set"] = not request.is_told
    guest["env"] = worker.environment
    guest["boot_id_fd"] = plan.BOOT_ID_FD
    try:
        _lock(request, channel, wait_r)
        if request.is_told:
            guest["env"] = environment.read(channel)
    except (Abandoned, BrokenPipeError, EOFError):
        os._exit(1)  # the host abandoned this sandbox; no process is left to tell
    except Exception as error:  # noqa: BLE001 - the host must hear which step failed
        report(channel, error)
        os._exit(1)
    if request.start == "exec":
        _say_locked(channel)
        _exec_guest(worker, guest, channel)
    if worker.guest_main is not None:  # else the worker has refused
        worker.guest_main(channel, guest, on_forked=partial(_say_locked, channel))
    os._exit(1)


def _lock(request: CloneRequest, channel: int, wait_r: int) -> None:
    # SECURITY: whatever the worker had open, a sandbox starts with the channel and nothing else;
    # mounts that come with it, of an image and of volumes, are attached, and closed, by its steps.
    last = CHANNEL_FD + request.mounts
    if request.has_standby:
        os.dup2(last + 1, STANDBY_FD, inheritable=False)
        request.guest["standby_fd"] = STANDBY_FD
    os.closerange(last + 1, wait_r)
    _close_rest(wait_r + 1, has_standby=request.has_standby)
    if channel != CHANNEL_FD or wait_r <= last or os.read(wait_r, 1) != b"!":
        raise Abandoned
    os.close(wait_r)
    lock = request.ready.lockdown
    do_all(lock.become_user)
    executor.walk(request.ready.runs)
    boot_id.forget()
    do_all(OWN_CGROUP_NAMESPACE)
    do_all(lock.privileges)
    do_all(lock.files)
    do_all(lock.filter)
    do_all(lock.descriptors)


def _close_rest(first: int, *, has_standby: bool) -> None:
    if has_standby:
        os.closerange(first, STANDBY_FD)
        first = STANDBY_FD + 1
    os.closerange(first, fds.HIGHEST)


def _say_locked(channel: int) -> None:
    """Do step 5d.7 once the guest has forked, or before it is started by exec."""
    os.write(channel, b"L")


def report(channel: int, error: Exception) -> None:
    """Tell the host which step failed, as "E" and a JSON object."""
    frames = traceback.extract_tb(error.__traceback__)
    data = {
        "step": getattr(error, "step", frames[-1].name if frames else type(error).__name__),
        "error": str(error)[:2000],
        "errno": getattr(error, "errno", None),
        "detail": traceback.format_exc()[-2000:],
    }
    os.write(channel, b"E" + json.dumps(data).encode())


def _exec_guest(worker: Worker, config: Dict[str, Any], channel: int) -> None:
    """Replace the warm image by a really fresh interpreter: no shared hash seed or layout."""
    del config["boot_id_fd"]  # it closes, as no copy is made of such a sandbox
    for fd in (channel, config.get("standby_fd", -1)):
        if fd >= 0:
            os.set_inheritable(fd, True)
    document = fds.as_nameless_file(json.dumps(config), "/tmp")  # noqa: S108 - our own mount
    words = [worker.exec_python, "-I", plan.GUEST_PATH, "init", str(channel), str(document)]
    os.execve(worker.exec_python, words, dict(config["env"]))  # noqa: S606
