"""Launch: the start of a gVisor sandbox on the host; a keeper, with `runsc` in a pid namespace.

Runs in the host's interpreter out of a bundle, before any byte of a caller is read. It decides
nothing: the program, the cgroups and the OCI bundle come from `runtime`, once there is a sandbox to
start; until then it does the work common to all of them. The keeper waits for the end of its leash
or of `runsc`, kills, and ends last. The invariant: everything that `runsc` starts lives in one pid
namespace, in the sandbox's cgroups and in a mount namespace whose state directory is a tmpfs of its
own, so that one kill ends it and nothing of it stays on the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from typing import Any, NoReturn

from cellwall.linux import seccomp
from cellwall.linux.syscalls import mounts, process
from cellwall.linux.syscalls.libc import do_all
from cellwall.runtimes.gvisor import work_area as gvisor_area
from cellwall.runtimes.gvisor.trees import saved_area

_NAMESPACES = process.CLONE_NEWPID | process.CLONE_NEWNS | process.CLONE_NEWNET
_STATE_OPTIONS = "size=16m,nr_inodes=4096,mode=700"
_COVER_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC | mounts.MS_RDONLY
_COVER_OPTIONS = "size=4k,nr_inodes=1,mode=555"
_OOM_SCORE = "500"
"""OOM score above that of every host process: if the host runs out of memory, a sandbox is killed
first."""
_HIGH_FD = 1023
"""Number of a descriptor that everything which `runsc` starts has, of /dev/null. In a process with
threads the kernel's table of descriptors grows, at 64 and 256 of them, only after a pause of all
processors (synchronize_rcu in the kernel's fs/file.c), 10 ms or more; the first time was in the
middle of each start. A table that is long enough from the beginning does not grow."""
_EXIT_UNUSED = 0
_EXIT_BROKEN = 70


def main() -> None:
    """Run `ORDER_FD LEASH_FD PLACE`; descriptors 0, 1 and 2 become those of `runsc`."""
    order, leash, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C at the embedder's terminal must not end it
    for fd in (order, leash):
        os.set_inheritable(fd, False)
    os.setsid()
    os.umask(0o022)
    keeper = os.pidfd_open(os.getpid())
    process.unshare(_NAMESPACES)
    child = os.fork()
    if child == 0:
        os.close(leash)
        step = "prepare"
        try:
            _prepare(keeper, place)
            config = _read(order)
            step = f"start {config['program']}"
            _become_runsc(config, place)
        except OSError as error:
            os.write(2, f"{step}: {error}\n".encode())
        finally:
            os._exit(_EXIT_BROKEN)
    os.close(keeper)
    os.close(order)
    _keep(child, leash)


def _prepare(keeper: int, place: str) -> None:
    """Prepare the sandbox's mounts; nothing about the sandbox is known yet."""
    process.do(process.prepare_parent_death_signal(signal.SIGKILL))
    if select.select([keeper], [], [], 0)[0]:
        os._exit(_EXIT_UNUSED)  # the keeper died before the death signal was set
    # From here on /proc shows only the processes of this sandbox.
    do_all((mounts.prepare_mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None),))
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount("proc", "/proc", "proc", flags, None)
    mounts.mount("tmpfs", place, "tmpfs", flags, _STATE_OPTIONS)
    _write("/proc/self/oom_score_adj", _OOM_SCORE)
    for name in ("state", "bundle"):
        os.mkdir(f"{place}/{name}", 0o700)


def _read(order: int) -> dict[str, Any]:
    """Wait for the order and return it; end the process if none ever comes."""
    data = b""
    while piece := os.read(order, 65536):
        data += piece
    if not data:
        os._exit(_EXIT_UNUSED)
    config: dict[str, Any] = json.loads(data)
    return config


def _become_runsc(config: dict[str, Any], place: str) -> NoReturn:
    """Enter the sandbox's cgroups, write its files, execute `runsc`."""
    for path in config["cgroups"]:
        _write(path, "0")
    for path in config["covered"]:
        mounts.mount("tmpfs", path, "tmpfs", _COVER_FLAGS, _COVER_OPTIONS)
    os.sched_setaffinity(0, config["cpus"])  # the number of CPUs that gVisor shows inside
    for name, content in config["files"].items():
        with open(f"{place}/bundle/{name}", "w", encoding="utf-8") as file:
            file.write(content)
    if config["is_saved"]:
        area = gvisor_area.place_of(place)
        saved_area.bring_back(place, area, config["area"]["options"])
    else:
        gvisor_area.make(place, config["area"])
        gvisor_area.attach_views(place, config["volumes"])
    os.chdir(config["directory"])
    _leave_room()
    seccomp.install(bytes.fromhex(config["filter"]))
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    os.execve(config["program"], config["words"], environment)  # noqa: S606


def _leave_room() -> None:
    """Have every process that follows begin with a long table of descriptors."""
    null = os.open("/dev/null", os.O_RDONLY)
    with contextlib.suppress(OSError):  # the host allows fewer: slower
        os.dup2(null, _HIGH_FD)
    os.close(null)


def _write(path: str, value: str) -> None:
    """Write into a file of the kernel; never create one."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _keep(child: int, leash: int) -> NoReturn:
    """Close the standard descriptors, wait, kill, and end after the pid namespace."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    poll = select.poll()
    poll.register(leash, select.POLLIN | select.POLLHUP)
    poll.register(os.pidfd_open(child), select.POLLIN)
    poll.poll()
    # the child is not reaped before `waitpid`, so its number is not reused
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
