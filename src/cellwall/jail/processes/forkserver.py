"""Stage B: a warm interpreter of one template, from which sandboxes are forked.

It is pid 1 of the template's pid namespace and root of a user namespace that has no rights on the
host. It has no network, no secrets, one thread, and no sockets but the control ones. `boot` starts
it through exec, so that nothing of the embedding process is in its memory. When it dies, the kernel
kills every sandbox made from it. The steps, letter = process:

    1b  first     preload; refuse if a thread or socket appeared; freeze; fork the workers for
                  programs; when told to go on, do the same with what sessions need
    2b  first     wait; end when the control socket or the embedding process ends
    3c  worker    receive `spawn` with the sandbox's end of its channel
    4c  worker    enter a network namespace that is new, or as new (`netns_reuse`); clone3 into all
                  others, and go home; write the id maps; release the child; leave the cgroups that
                  the child was born into for those of the next one; answer with its pidfd
    5d  init      see `sandbox_init`
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set

from cellwall.jail.fast import (
    heap_layout,
    machine_code,
    netns_reuse,
    preparation,
    single_program,
)
from cellwall.jail.plan import boot_id, plan
from cellwall.jail.processes import clone_request, sandbox_init
from cellwall.jail.processes.boot import read_config
from cellwall.jail.protocol import fds
from cellwall.linux.syscalls import id_maps, process

_NAMESPACES = (
    process.CLONE_NEWUSER
    | process.CLONE_NEWPID
    | process.CLONE_NEWNS
    | process.CLONE_NEWIPC
    | process.CLONE_NEWUTS
    | process.CLONE_NEWCGROUP
)


_CONTROL_FD = 64
_DYING_S = 1.0
"""Most seconds that a killed process may need for its end."""


class Dirty(Exception):
    """The preload left something that forks must not share."""


class Worker(NamedTuple):
    """What a worker needs for every sandbox, computed once."""

    facts: plan.HostFacts
    program: bytes
    last_capability: int
    guest_main: Optional[Callable[..., Any]]
    """Entry point of init; None: it makes sandboxes of one program alone. Imported before the fork
    of the workers, because a worker is in the cgroups of its next sandbox, and what it used would
    count against the limits of that sandbox's caller."""
    guest_alone: single_program.Context
    """Entry point of a context that has no init of ours beside it."""
    exec_python: str
    forker: process.Cloner
    """Makes workers, without the fork hooks of libraries."""
    cloner: process.Cloner
    """Makes sandboxes."""
    answer: fds.Message
    """Prepared message that hands over the latest sandbox. It is made once: each page that is
    written to between two clones is copied, and a JSON encoder alone writes to thirty."""
    mover: int
    """Id that workers keep as their saved user id; 0: none."""
    root_id: int
    """Id that is called root inside and that no process has; 0 where only one id can be mapped."""
    image_ids: id_maps.Lines
    """Which ids of our range, from a sandbox's first one on, are which of an image's."""
    environment: Dict[str, str]
    """Environment of a sandbox for which the host names no other; this process has it already."""
    is_fast: bool
    """Whether it makes programs alone and lends networks again; see `fast.switch`."""


def main(arguments: List[str], arenas: heap_layout.ArenaReservation) -> None:
    """Run `CONFIG_FD CONTROL_FD LIFELINE_FD WORKER_FD…` with the given arenas; never return."""
    config = read_config(int(arguments[0]))
    control = socket.socket(fileno=int(arguments[1]))
    lifeline, *worker_fds = (int(word) for word in arguments[2:])
    for fd in (control.fileno(), lifeline, *worker_fds):
        os.set_inheritable(fd, False)
    ours = {control.fileno(), lifeline, *worker_fds}
    programs = config["program_workers"]
    with _told(control, config) as preloading:
        process.do(process.prepare_no_new_privs())
        if config["is_alike"]:  # this program is; those that sandboxes start need not be
            process.choose_layouts(at_random=True)
        process.unshare(process.CLONE_NEWNET)  # the inherited one is not our user namespace's
        os.umask(0o022)
        worker = _worker(config)
        guest = importlib.import_module(config["guest_preload"])
        report = guest.warm(
            list(config["preload"]),
            config["environment"],
            config["preload_environment"],
            is_rehearsed=config["is_rehearsed"] and not config["is_quick"],
        )
        arenas.give_back()
        _fork_workers(config, worker, worker_fds[:programs], ours, guest.recall)
    if preloading.has_failed:
        os._exit(1)
    _tell(control, {"event": "programs", "preload": report})
    _wait_to_go_on(control, lifeline)
    with _told(control, config) as preloading:
        arenas = heap_layout.ArenaReservation(
            heap_layout.SESSION_ARENAS if config["is_fast"] else 0
        )
        guest.warm_sessions(is_rehearsed=config["is_rehearsed"])
        arenas.give_back()
        _fork_workers(config, worker, worker_fds[programs:], ours, _nothing)
    fds.close_all(worker_fds)
    if not preloading.has_failed:
        _tell(control, {"event": "ready"})
    _watch(control, lifeline)  # after a failure, too: programs forked here still run


class _Preloading:
    """Whether a part of the preload failed."""

    has_failed = False


@contextlib.contextmanager
def _told(control: socket.socket, config: Dict[str, Any]) -> Iterator[_Preloading]:
    """Report an error in the block to the host."""
    preloading = _Preloading()
    try:
        yield preloading
    except BaseException as error:  # noqa: BLE001 - every error is reported
        step = f"fork-server: preload {', '.join(config['preload']) or 'nothing'}"
        message = f"{type(error).__name__}: {error}"[:2000]
        number = getattr(error, "errno", None)
        _tell(control, {"event": "failed", "step": step, "error": message, "errno": number})
        preloading.has_failed = True


def _wait_to_go_on(control: socket.socket, lifeline: int) -> None:
    """Wait for the host's message; it inspects our children meanwhile, which are only workers."""
    poller = select.poll()
    poller.register(control.fileno(), select.POLLIN | select.POLLHUP)
    poller.register(lifeline, select.POLLIN)
    ready = {fd for fd, _ in poller.poll()}
    try:
        if lifeline in ready:
            os._exit(0)
        fds.receive_message(control)
    except fds.ControlClosed:
        os._exit(0)


def _tell(control: socket.socket, message: Dict[str, Any]) -> None:
    try:
        fds.send_message(control, message)
    except fds.ControlClosed:
        os._exit(0)  # the host abandoned this start; no process is left to tell


def _nothing() -> None:
    """Do nothing: it is not known what a session does first."""


def _fork_workers(
    config: Dict[str, Any],
    worker: Worker,
    worker_fds: List[int],
    ours: Set[int],
    recall: Callable[[], None],
) -> None:
    """Freeze what has been preloaded so far, and fork the workers that share it."""
    # Generators seeded before the fork are found now; every context gives them a seed of its own.
    importlib.import_module(config["guest_reseed"]).collect()
    _refuse_dirt(ours)
    gc.collect()
    gc.freeze()
    if config["is_fast"] and not config["is_quick"]:
        preparation.prepare(recall)
    for fd in worker_fds:
        if worker.forker.clone() == 0:
            try:
                _serve(worker, fd)
            finally:
                os._exit(1)
        os.close(worker.forker.pidfd)


def _worker(config: Dict[str, Any]) -> Worker:
    """Import what every fork runs, before the preload.

    Objects that lie together are copied together, and each page a fork writes to costs it a fault.
    """
    cloner = process.Cloner(_NAMESPACES, exit_signal=signal.SIGCHLD)
    return Worker(
        facts=plan.HostFacts.from_json(config["facts"]),
        last_capability=process.last_capability(),
        program=bytes.fromhex(config["seccomp"]),
        guest_main=_function(config["guest_main"]) if config["needs_init"] else None,
        guest_alone=importlib.import_module(config["guest_alone"]).main,
        exec_python=config["python"],
        forker=process.Cloner(0, exit_signal=signal.SIGCHLD),
        cloner=cloner,
        answer=fds.prepare(b"{}", cloner.pidfd_cell),
        mover=config["mover"],
        root_id=config["root_id"],
        image_ids=tuple(config["image_ids"]),
        environment=config["environment"],
        is_fast=config["is_fast"],
    )


def _function(name: str) -> Callable[..., Any]:
    """Import `module:function`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _refuse_dirt(ours: Set[int]) -> None:
    """Raise `Dirty` if the preload left a thread or a descriptor open.

    SECURITY: a thread would vanish in forks holding locks; a socket would be shared by all.
    """
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise Dirty(
            f"{len(threads)} threads exist after the preload; drop the module that starts them"
        )
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in ours or fd < 3:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the listing's own descriptor
        if not target.startswith("/proc/"):
            raise Dirty(
                f"descriptor {fd} ({target}) is open after the preload; close it in the module"
            )


def _watch(control: socket.socket, lifeline: int) -> None:
    """Do step 2b: reap; exit when the control socket or the embedding process ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps for pid 1
    poller = select.poll()
    poller.register(control.fileno(), select.POLLIN | select.POLLHUP)
    poller.register(lifeline, select.POLLIN)
    while not poller.poll():
        pass
    os._exit(0)


def _serve(worker: Worker, fd: int) -> None:
    """Do steps 3c and 4c repeatedly until the host closes the socket. Never return."""
    # At a high number, so that the descriptors of a child are the same numbers every time.
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _CONTROL_FD)
    fds.keep_only([high])
    control = socket.socket(fileno=high)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if worker.mover:
        # cgroup v1 lets an ordinary user move processes with the same id, even if only as saved id.
        # SECURITY: it gives a worker no more than it has where sandboxes share that id.
        os.setresuid(-1, -1, worker.mover)
    process.do(process.prepare_parent_death_signal(signal.SIGKILL))
    _raise_oom_score()
    known = clone_request.CloneRequests(worker.facts, worker.program, worker.last_capability)
    alone_here = _able(worker)
    nets = netns_reuse.Networks(netns_reuse.MOST_KEPT if worker.is_fast else 0)
    while True:
        try:
            data, received = fds.receive(control)
            if data == clone_request.MOVE:
                _move_self(received)
                fds.close_all(received)
                fds.send_message(control, {"moved": True})
                continue
            uid, request = known.read(data)
            boot_id.draw()
            if request.alone is None and worker.guest_main is not None:
                _spawn(worker, control, nets, uid, request, received)
            elif request.alone is not None and alone_here is not None:
                alone_here.spawn(control, nets, uid, request.alone, request, received)
            else:
                fds.close_all(received)
                fds.send_message(control, {"error": "none of this kind here", "errno": None})
        except fds.ControlClosed:
            os._exit(0)


def _raise_oom_score() -> None:
    """Have the kernel kill sandboxes before the process that embeds the engine."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")


def _spawn(
    worker: Worker,
    control: socket.socket,
    nets: netns_reuse.Networks,
    uid: int,
    request: clone_request.CloneRequest,
    received: List[int],
) -> None:
    channel, *rest = received
    move_files = rest[request.mounts + request.has_standby :]
    wait_r, wait_w = os.pipe()
    try:
        nets.enter()
        if request.has_image:
            netns_reuse.allow_low_ports()
        pid = worker.cloner.clone()
    except OSError as error:
        nets.leave()
        fds.close_all([wait_r, wait_w, *received])
        fds.send_message(control, {"error": str(error), "errno": error.errno})
        return
    if pid == 0:
        try:
            sandbox_init.main(worker, request, channel, wait_r)
        finally:
            os._exit(1)  # SECURITY: whatever happens, a child never goes on as a worker
    pidfd = worker.cloner.pidfd
    nets.lend(pidfd)
    nets.leave()
    try:
        if request.has_image:
            _write_map(pid, id_maps.text(worker.image_ids, uid).encode())
        else:
            _write_maps(worker.root_id, pid, uid)
        os.write(wait_w, b"!")
    except OSError as error:
        # If the child was killed, its /proc files are root's, and the host lacks nothing. They
        # become root's when it releases its memory, a moment before its pidfd says that it is dead.
        is_dead = bool(select.select([pidfd], [], [], _DYING_S)[0])
        with contextlib.suppress(ProcessLookupError):  # the pid may be reused: see `_serve`
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        number = errno.ESRCH if is_dead else error.errno
        fds.send_message(control, {"error": f"id map: {error}", "errno": number})
    else:
        _move_self(move_files)  # if it cannot, the worker ends, and the sandbox with its channel
        fds.send_prepared(control, worker.answer)
    finally:
        fds.close_all([wait_r, wait_w, pidfd, *received])


def _able(worker: Worker) -> Optional[_Alone]:
    """Return None if this worker cannot make sandboxes of one program; see `host_facts`."""
    try:
        return _Alone(worker) if worker.is_fast and machine_code.IS_KNOWN else None
    except OSError:
        return None


class _Alone:
    """Step 4c for sandboxes of one program; their own steps are in `single_program`."""

    def __init__(self, worker: Worker) -> None:
        maps = partial(_write_maps, worker.root_id)
        self._maker = single_program.Maker(_NAMESPACES, worker.guest_alone, maps)
        self._answer = fds.prepare(b"{}", self._maker.pidfd_cell)

    def spawn(
        self,
        control: socket.socket,
        nets: netns_reuse.Networks,
        uid: int,
        lists: single_program.Ready,
        request: clone_request.CloneRequest,
        received: List[int],
    ) -> None:
        """Make one sandbox, leave its cgroups, and answer with its pidfd."""
        pidfd, move_files = self._maker.pidfd_cell, received[len(single_program.RECEIVED) :]
        pidfd.value = -1
        try:
            if tuple(received[: len(single_program.RECEIVED)]) != single_program.RECEIVED:
                raise OSError(errno.EBADF, f"descriptors: {received} instead of 3 and on")
            nets.enter()
            self._maker.make(lists, request.guest, uid, is_told=request.is_told)
        except OSError as error:
            fds.send_message(control, {"error": str(error), "errno": error.errno})
        else:
            try:
                self._maker.check()
            except OSError as error:
                sandbox_init.report(single_program.CHANNEL_FD, error)
            _move_self(move_files)
            fds.send_prepared(control, self._answer)
        finally:
            made = [pidfd.value] if pidfd.value >= 0 else []
            for each in made:
                nets.lend(each)
            nets.leave()
            fds.close_all([*received, *made])


def _move_self(move_files: List[int]) -> None:
    """Move this process into other cgroups: 0 means the writer (`Groups.open_self_move_files`)."""
    for fd in move_files:
        os.write(fd, b"0")


def _write_maps(root_id: int, pid: int, uid: int) -> None:
    """Map one id for the sandbox: `user` inside, `uid` of our own range outside.

    Where there is a range, root is mapped inside, too, to an id that no process has or can get.
    """
    root = f"\n0 {root_id} 1" if root_id else ""
    _write_map(pid, f"{plan.INSIDE_UID} {uid} 1{root}".encode())


def _write_map(pid: int, text: bytes) -> None:
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
