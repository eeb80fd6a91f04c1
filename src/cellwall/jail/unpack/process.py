"""The process that unpacks an image: it gives up all but the tree that it writes.

Started by the jail runtime (`images.unpacking`) as `python -I -S guest.pyz unpack CONTROL_FD`, as
root or as an ordinary user with ids for images (`subordinate_ids.ImageIds`).
SECURITY: not a byte of a layer is read before `_lock` has ended. Then the process is root of a user
namespace whose ids are those of images on disk, its root directory is the tree itself, and there is
no other file, process or network that it could reach. The steps, letter = process:

    1a  outer   receive the request, and the layers' files as descriptors; [ordinary user] enter a
                user namespace with the ids of images behind our own, and give them the empty tree
    2a  outer   new pid, ipc, uts and net namespaces; fork
    3b  inner   own mount namespace; the tree becomes the root, nosuid, nodev, noexec
    4b  inner   own user namespace; the outer process writes its maps
    5b  inner   rlimits, capabilities, no_new_privs, seccomp
    6b  inner   unpack (`extract`), with a child that reads the layer (`layer_stream`) and one that
                decompresses it; finish and look at the tree (`finish`); say the result
    7a  outer   wait; its end is the end of the inner one

An image that has all layers of another one is unpacked over that one's tree, as an overlay (3b),
which nothing can write. Then, if the host says so:

    8a  outer   own mount namespace; the folder of all images becomes the root; then as in 5b
    9a  outer   make the tree of hard links (`merge`); say what it has

An ordinary user may not remove files of those ids, so a request `remove` does that here: step 1a,
then as in 8a.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
from typing import Any, Callable, Dict, List, Tuple

from cellwall.jail.protocol import fds
from cellwall.jail.unpack import extract, finish, merge
from cellwall.jail.unpack.child_process import Refused
from cellwall.jail.unpack.layer_bytes import Layer
from cellwall.linux import seccomp
from cellwall.linux.removal import remove_tree
from cellwall.linux.syscalls import id_maps, mounts, process
from cellwall.linux.syscalls.libc import do_all

_STAGING = "/tmp"  # noqa: S108 - a mount point in a namespace of its own
_NAMESPACES = (
    process.CLONE_NEWPID | process.CLONE_NEWIPC | process.CLONE_NEWUTS | process.CLONE_NEWNET
)
_KEPT = 0b1_1011
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, over files of images only."""
_OF_THE_IMAGE = frozenset(
    {errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EMLINK}
)
"""Errors of paths: nothing of the host's is lacking, the image's own links and names are odd."""
_ATTRIBUTES = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC
_MIB = 1 << 20
_MEMORY_MIB = 1024
_OPEN_FILES = 1024


def main(arguments: List[str]) -> None:
    """Serve one request on socket `CONTROL_FD`; never return."""
    control = socket.socket(fileno=int(arguments[0]))
    process.do(process.prepare_parent_death_signal(signal.SIGKILL))
    try:
        request, layers = _request(control)
        if request["outer"]:
            id_maps.enter(request["outer"])
        if request["remove"]:
            _say(control, _answered(lambda: _removed(control, request)))
        else:
            _outer(control, request, layers)
    except fds.ControlClosed:
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - the host must hear of every error
        _say(control, {"error": str(error)[:1000], "code": "internal"})
        os._exit(1)
    os._exit(0)


def _request(control: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Return the request, and a descriptor for each layer.

    The layers come in further messages: a message has a bound, and so have its descriptors.
    """
    request, _ = fds.receive_message(control)
    files: List[int] = []
    request["layers"] = []
    while len(files) < request["count"]:
        more, received = fds.receive_message(control)
        request["layers"] += more["layers"]
        files += received
    return request, files


def _removed(control: socket.socket, request: Dict[str, Any]) -> Dict[str, Any]:
    _enter_images(control, request, _OPEN_FILES)
    for name in request["remove"]:
        remove_tree(name)
    return {}


def _outer(control: socket.socket, request: Dict[str, Any], layers: List[int]) -> None:
    if request["outer"]:  # else the engine has done it, as root
        for name in request["tops"]:
            os.chown(f"{request['images']}/{name}", request["base"], request["base"])
    asks, asked = os.pipe()
    answers, answered = os.pipe()
    process.unshare(_NAMESPACES)
    pid = os.fork()
    if pid == 0:
        fds.close_all([asks, answered])
        _inner(control, request, layers, (asked, answers))
    fds.close_all([asked, answers, *layers])
    if os.read(asks, 1) == b"?":
        line = id_maps.text(request["ids"], request["base"])
        for name in ("uid_map", "gid_map"):
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        os.write(answered, b"!")
    _, status = os.waitpid(pid, 0)
    if status:
        what = "it was killed" if os.WIFSIGNALED(status) else "it ended"
        _say(control, {"error": f"{what} (status {status:#x})", "code": "ended"})
    elif request["lower"]:
        fds.receive_message(control)  # the host has heard that the layers are whole
        _say(control, _answered(lambda: _merged(control, request)))


def _merged(control: socket.socket, request: Dict[str, Any]) -> Dict[str, Any]:
    """Do steps 8a and 9a."""
    _enter_images(control, request, merge.DESCRIPTORS)
    merging = merge.Merge(int(request["most_bytes"]), int(request["most_inodes"]))
    merging.make(request["lower"], f"{request['over']}/upper", request["tree"])
    return merging.answer()


def _enter_images(control: socket.socket, request: Dict[str, Any], open_files: int) -> None:
    """Do step 8a."""
    process.unshare(process.CLONE_NEWNS)
    mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
    _show(request["images"])
    program = bytes.fromhex(request["seccomp"])
    last = process.last_capability()
    mounts.pivot_into(_STAGING)
    fds.keep_only([control.fileno()])
    _lock(program, last, request, open_files)


def _show(path: str) -> None:
    """Mount a directory of the host on the place that becomes the root."""
    mounts.mount(path, _STAGING, None, mounts.MS_BIND, None)
    mounts.mount_setattr(_STAGING, _ATTRIBUTES, recursive=False)


def _show_over(images: str, lower: str, over: str) -> None:
    """Mount an overlay there, whose changes lie in `over`; nothing can write the lower tree."""
    own = f"{images}/{over}"
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    options = mounts.changeable(f"{images}/{lower}", f"{own}/upper", f"{own}/work")
    mounts.mount("overlay", _STAGING, "overlay", flags, options)


def _inner(
    control: socket.socket,
    request: Dict[str, Any],
    layers: List[int],
    ends: Tuple[int, int],
) -> None:
    """Do steps 3b to 6b; never return."""
    asked, answers = ends

    def work() -> Dict[str, Any]:
        process.do(process.prepare_parent_death_signal(signal.SIGKILL))
        process.unshare(process.CLONE_NEWNS)
        mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
        if request["lower"]:
            _show_over(request["images"], request["lower"], request["over"])
        else:
            _show(f"{request['images']}/{request['tree']}")
        program = bytes.fromhex(request["seccomp"])
        last = process.last_capability()
        mounts.pivot_into(_STAGING)
        process.unshare(process.CLONE_NEWUSER)
        os.write(asked, b"?")
        if os.read(answers, 1) != b"!":
            os._exit(1)
        fds.keep_only([control.fileno(), *layers])
        _lock(program, last, request, _OPEN_FILES)
        return _unpacked(request, layers)

    _say(control, _answered(work))
    os._exit(0)


def _answered(work: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    """Return the result of some work, or what went wrong."""
    try:
        return work()
    except Refused as refusal:
        return {"error": str(refusal)[:1000], "code": refusal.code}
    except MemoryError:
        return {"error": "it needs more memory than it may have", "code": "bound"}
    except OSError as error:
        code = "invalid" if error.errno in _OF_THE_IMAGE else "system"
        return {"error": str(error)[:1000], "code": code, "errno": error.errno}


def _lock(program: bytes, last: int, request: Dict[str, Any], open_files: int) -> None:
    """Take every right away that unpacking does not need. The order is that of `jail.plan`."""
    most_bytes, cpu_s = int(request["most_bytes"]), int(request["cpu_s"])
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.umask(0)
    for number, most in (
        (resource.RLIMIT_CORE, 1),
        (resource.RLIMIT_FSIZE, most_bytes),
        (resource.RLIMIT_AS, _MEMORY_MIB * _MIB),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NOFILE, open_files),
    ):
        resource.setrlimit(number, (most, most))
    calls = (
        process.prepare_no_dumps(),
        *process.prepare_drop_bounding(last, _KEPT),
        process.prepare_clear_ambient(),
        process.prepare_capabilities(_KEPT),
        process.prepare_no_new_privs(),
        process.prepare_parent_death_signal(signal.SIGKILL),
        seccomp.prepare(program),
    )
    do_all(calls)


def _unpacked(request: Dict[str, Any], files: List[int]) -> Dict[str, Any]:
    bounds = extract.Bounds(
        int(request["most_bytes"]), int(request["most_inodes"]), int(request["most_ratio"])
    )
    tree = extract.Tree(bounds, request["ids"])
    for layer, file in zip(request["layers"], files):
        tree.add(Layer(file, **layer))
    finish.finish(request["directories"], request["working_dir"])
    return {
        "bytes": tree.bytes,
        "inodes": tree.inodes,
        "skipped": tree.skipped,
        **finish.accounts(),
        "has_python": finish.has_python(),
    }


def _say(control: socket.socket, answer: Dict[str, Any]) -> None:
    """Say the result; one that is too long for a message is an error of the image's."""
    text = json.dumps(answer)
    if len(text) > finish.MOST_ANSWER_BYTES:
        text = json.dumps({"error": "its list of users is too long", "code": "bound"})
    try:
        control.sendall(text.encode())
    except OSError:
        os._exit(1)  # the host is gone
