"""Stage A: builds a template's root and starts its fork-server in it.

Runs as `python -I -S guest.pyz boot …`, started by `fork_server`. On a root host it is the only
process of the engine, besides the engine itself, with the host's privileges, so: standard library,
linear, short. It reads nothing that a program ever wrote. The steps, letter = process:

    0a  boot      wait to be told what to build
    1a  boot      [rootless] enter a user namespace of its own, mapped to the caller, and to ids
                  that the caller may map if there are any (`id_maps`)
    2a  boot      new pid, ipc, uts and net namespaces; fork
    3b  first     own mount namespace; open sources; build the root; pivot; old root gone
    4b  first     leave the host's groups; enter the fork-server's user namespace; ask for ids
    5a  boot      write the id maps; answer
    6b  first     become its root, exec the template's Python as `forkserver`
    7a  boot      wait for the first process; exit with its result
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import Any, Dict, Iterator, List, Optional

from cellwall.jail.plan import executor, plan
from cellwall.jail.protocol import fds
from cellwall.linux.syscalls import id_maps, libc, mounts, process

_STAGING = "/tmp"
_STACK_BYTES = 8 << 20
_FIRST_ALIKE = 200
"""First of the numbers that descriptors get where layouts are alike: below the limit of a host that
gives only 256, and above what a fork-server uses."""
_NAMESPACES = (
    process.CLONE_NEWPID | process.CLONE_NEWIPC | process.CLONE_NEWUTS | process.CLONE_NEWNET
)


def read_config(fd: int) -> Dict[str, Any]:
    """Read the whole JSON document behind a descriptor from the host."""
    with os.fdopen(fd, "rb") as file:
        config: Dict[str, Any] = json.loads(file.read())
    return config


def _told(control: socket.socket, lifeline: int) -> Dict[str, Any]:
    """Do step 0a: take the document with the configuration. ControlClosed if none comes.

    Exit if the embedding process ends: a fork of it may hold the other end of the socket.
    """
    poller = select.poll()
    poller.register(control.fileno(), select.POLLIN)
    poller.register(lifeline, select.POLLIN)
    if lifeline in {fd for fd, _ in poller.poll()}:
        os._exit(1)
    _, documents = fds.receive_message(control)
    (document,) = documents
    return read_config(document)


def main(arguments: List[str]) -> None:
    """Run `boot CONTROL_FD KEEP_FD…`; report a failure on the control socket.

    Nothing is reported if the other end is closed: then the host has abandoned this start.
    """
    control = socket.socket(fileno=int(arguments[0]))
    kept = [int(word) for word in arguments[1:]]
    pid = 0
    step = "boot: read the configuration"
    try:
        config = _told(control, kept[0])
        _raise_descriptor_limit()
        if config["rootless"]:
            step = "boot: make a user namespace (is kernel.unprivileged_userns_clone off?)"
            _enter_own_user_namespace(config["outer"])
        step = "boot: make pid, ipc, uts and net namespaces"
        process.unshare(_NAMESPACES)
        asks, asked = os.pipe()
        answers, answered = os.pipe()
        pid = os.fork()
        if pid == 0:
            # Keep only our ends: if boot dies before the parent-death signal is set, its pipes end.
            fds.close_all([asks, answered])
            _first(config, control, kept, (asked, answers))
        fds.close_all([asked, answers])
        fds.send_message(control, {"event": "forked", "pid": pid})
        step = "boot: write the id maps of the fork-server"
        if os.read(asks, 1) == b"?":
            _write_maps(pid, config)
            os.write(answered, b"!")
    except Exception as error:  # noqa: BLE001 - any error must reach the host
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # else it would be left to the host's init
        _report(control, step, error)
        os._exit(1)
    control.close()
    fds.close_all(kept[1:])
    _wait_for_an_end(pid, kept[0])
    _, status = os.waitpid(pid, 0)
    os._exit(0 if status == 0 else 1)


def _wait_for_an_end(pid: int, lifeline: int) -> None:
    """Wait for the end of the fork-server's first process, or of the embedding process.

    In the second case exit: the first process then dies, also in the middle of an import, where it
    does not notice the end itself.
    """
    child = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(child, select.POLLIN)
    poller.register(lifeline, select.POLLIN)
    if lifeline in {fd for fd, _ in poller.poll()}:
        os._exit(1)


def _raise_descriptor_limit() -> None:
    """Lift the embedder's soft limit: workers keep descriptors at high numbers. setrlimit(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _report(control: socket.socket, step: str, error: BaseException) -> None:
    errno = getattr(error, "errno", None)
    detail = "" if errno is not None else traceback.format_exc()[-2000:]
    message = {
        "event": "failed",
        "step": getattr(error, "step", step),
        "error": str(error)[:2000],
        "errno": errno,
        "detail": detail,
    }
    with contextlib.suppress(fds.ControlClosed):
        fds.send_message(control, message)


def _enter_own_user_namespace(outer: Optional[Dict[str, Any]]) -> None:
    if outer is not None:
        id_maps.enter(outer)
        return
    uid, gid = os.geteuid(), os.getegid()
    process.unshare(process.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        _write(f"/proc/self/{name}", text)


def _write_maps(pid: int, config: Dict[str, Any]) -> None:
    """Map the fork-server's namespace to ids of an unprivileged range, or to the one id available.

    That one id is already called 0 here: `_enter_own_user_namespace` mapped it. If workers need it
    to be moved between cgroups (`forkserver`), it is the last id of the fork-server's map.
    """
    base, count = (0, 1) if config["shares_id"] else (config["uid_base"], config["uid_count"])
    mover = config["forkserver"]["mover"]
    moved = f"\n{mover} 0 1" if mover else ""
    # A line of a map lies within one line of the map above it.
    images = (config["outer"] or {}).get("images")
    behind = images["uid"][1] if images else 0
    lines = f"0 {base} {count - behind}"
    if behind:
        lines += f"\n{count - behind} {base + count - behind} {behind}"
    _write(f"/proc/{pid}/uid_map", f"{lines}{moved}")
    _write(f"/proc/{pid}/gid_map", lines)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {text!r} to {path}: {error.strerror}") from error
    finally:
        os.close(fd)


def _first(
    config: Dict[str, Any], control: socket.socket, kept: List[int], ends: tuple[int, int]
) -> None:
    """Do steps 3b to 6b; never return."""
    asked, answers = ends
    step = "boot: build the template's root"
    try:
        process.do(process.prepare_parent_death_signal(signal.SIGKILL))
        process.unshare(process.CLONE_NEWNS)
        mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
        _build_root(config)
        process.set_hostname("cellwall")
        step = "boot: enter the fork-server's user namespace"
        if not config["shares_id"]:
            os.setgroups([])
            _have_others_charged(config)
        process.unshare(process.CLONE_NEWUSER)
        os.write(asked, b"?")
        if os.read(answers, 1) != b"!":
            os._exit(1)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # Once more: the kernel forgets it whenever the credentials change (prctl(2)).
        process.do(process.prepare_parent_death_signal(signal.SIGKILL))
    except Exception as error:  # noqa: BLE001
        _report(control, step, error)
        os._exit(1)
    try:
        _exec_forkserver(config, control, kept)
    except OSError as error:
        _report(control, f"boot: start {config['python']} in the template's root", error)
    os._exit(1)


def _have_others_charged(config: Dict[str, Any]) -> None:
    """Take the range's first id while the user namespace is made, and stay capable of making it.

    What sandboxes use of a per-user count (inotify(7), namespaces) is charged to the user that made
    the namespaces above them: this way that is an id used for nothing else, instead of the host's
    root. The owner has power over the namespace, but the only processes of that id are in it.
    """
    process.set_effective_uid(config["uid_base"])
    # The change made our files in /proc the host root's; boot may be less.
    process.do(process.prepare_dumpable())
    # Once more, as below.
    process.do(process.prepare_parent_death_signal(signal.SIGKILL))


def _build_root(config: Dict[str, Any]) -> None:
    facts = plan.HostFacts.from_json(config["facts"])
    root = plan.Root(
        config["template_path"],
        tuple(config["base_mounts"]),
        config["guest_path"],
        config["interpreter"],
    )
    opened = executor.open_sources(plan.root_plan(facts, root))
    flags = mounts.MS_NOSUID | mounts.MS_NODEV
    # SECURITY: an id that is mapped in no sandbox, or its root could change this root.
    owner = config["uid_base"] + config["root_index"] if config["uid_count"] > 1 else 0
    options = f"size=16m,mode=755,uid={owner},gid={owner}"
    mounts.mount("tmpfs", _STAGING, "tmpfs", flags, options)
    os.umask(0o022)
    with _files_as(owner):
        executor.build(opened, _STAGING)
    mounts.pivot_into(_STAGING)


@contextlib.contextmanager
def _files_as(owner: int) -> Iterator[None]:
    """Make files as the id that is root inside.

    SECURITY: meanwhile this process has no capability over files. So the overlays that are mounted
    meanwhile show only what all users may read, whatever process looks (overlayfs.rst).
    """
    if owner:
        os.setgroups([])
        libc.do_all(process.prepare_file_ids(owner, 0))
    yield
    if owner:
        libc.do_all(process.prepare_file_ids(0, owner))


def _exec_forkserver(config: Dict[str, Any], control: socket.socket, kept: List[int]) -> None:
    """Keep exactly the control socket, the lifeline and the workers' sockets across the exec."""
    inherited = [control.fileno(), *kept]
    fds.keep_only(inherited)
    if config["is_alike"]:
        inherited = _laid_out_alike(inherited)
    for fd in inherited:
        os.set_inheritable(fd, True)
    devnull = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(devnull, fd)
    os.close(devnull)
    read_end = fds.as_document(json.dumps(config["forkserver"]))
    words = [config["python"], "-I", plan.GUEST_PATH, "forkserver", str(config["arenas"])]
    words += [str(fd) for fd in (read_end, *inherited)]
    os.execve(config["python"], words, config["environment"])  # noqa: S606


def _laid_out_alike(inherited: List[int]) -> List[int]:
    """Have the fork-server's memory lie as that of any other of its template (design/0042).

    What the kernel puts on the stack before a program has to be the same, too: so the descriptors,
    which are named there, get the same numbers. Returns those.
    """
    process.choose_layouts(at_random=False)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    # The stack's limit decides where mappings begin.
    soft = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    numbers = [_FIRST_ALIKE + index for index in range(len(inherited))]
    behind = _FIRST_ALIKE + len(inherited)
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, behind) for number in inherited]
    for number in inherited:  # any of them may be one of those that are given now
        os.close(number)
    for number, alike in zip(moved, numbers):
        os.dup2(number, alike)
        os.close(number)
    return numbers


if __name__ == "__main__":
    main(sys.argv[1:])
