"""Inside: the first process of a container locks itself down further and becomes init.

Runs in the template's interpreter out of the image's guest bundle; stdlib only, Python 3.8 and
later. The container engine has already taken privileges, namespaces and the root away. SECURITY:
the document read before the lockdown is the engine's alone; what a caller chose (environment,
names of contexts) comes in the second document, after it. The steps:

    1  read the lockdown      3  Landlock, the jail's own seccomp filter
    2  make the work area     4  read the guest's configuration, import, serve
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import struct
import sys
from typing import Any, Dict

_LENGTH = struct.Struct(">I")
WORK = "/home"
HOME = "/home/user"
TOP = f"{WORK}/top"
"""Directory that holds the targets of the image's links in `/`."""
TOP_NAMES = (
    *("app", "artifacts", "code", "content", "conversation_history", "data", "files", "input"),
    *("kaggle", "large_tool_results", "mnt", "output", "outputs", "project", "repo", "results"),
    *("sandbox", "src", "srv", "testbed", "work", "workdir", "workspace"),
)
"""Directories in `/` that programs expect or make; a Docker engine cannot give a container a top
level of its own with a size. Below `/mnt` every name can be used."""
_WRITABLE = (WORK, "/dev/shm", "/dev/pts", "/dev/mqueue")
_READABLE = ("/usr", "/opt", "/etc", "/proc", "/sys", "/dev", "/bin", "/sbin", "/lib", "/lib64")


def place_of(path: str) -> str:
    """Return where a path on a template is: behind the links that the container's image has."""
    for link in ("/tmp/", "/var/tmp/"):
        if path.startswith(link):
            return f"{WORK}/tmp/{path[len(link) :]}"
    return f"{TOP}{path}" if path.split("/")[1] in TOP_NAMES else path


def document(content: Dict[str, Any]) -> bytes:
    """Return `content` in the format that `main` reads."""
    text = json.dumps(content).encode()
    return _LENGTH.pack(len(text)) + text


def main() -> None:
    """Lock the process down and serve; never return.

    With an argument it is a step of a sandbox on an image: `image` and `locked` for `inside_image`,
    `context` for `guest.init.context_exec`.
    """
    step = sys.argv[1] if len(sys.argv) > 1 else ""
    if step == "context":
        from cellwall.guest.init import context_exec

        context_exec.begin(sys.argv[2:])
    if step == "image":
        from cellwall.runtimes.docker import inside_image

        inside_image.build(_read())
    lock = _read()
    os.umask(0o022)
    if step != "locked":
        _make_work_area()
    _lock_down(lock)
    _serve(_read())


def _make_work_area() -> None:
    os.makedirs(HOME, 0o755, exist_ok=True)
    os.makedirs(WORK + "/tmp", exist_ok=True)
    os.chmod(WORK + "/tmp", 0o1777)  # noqa: S103 - like every /tmp
    for name in TOP_NAMES:
        os.makedirs(f"{TOP}/{name}", exist_ok=True)


def _serve(guest: Dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(guest["env"])
    guest["out_fd"] = _to_high_number(1)
    channel = _to_high_number(0)
    import site

    site.main()  # `-S` kept the template's .pth files from running before the lockdown
    sys.path[:] = [path for path in sys.path if path]
    for name in guest["preload"]:
        with contextlib.suppress(Exception):  # the program that imports it gets the error
            importlib.import_module(name)
    from cellwall.guest.init import main as init

    init.main(channel, guest)


def _to_high_number(fd: int) -> int:
    """Move a descriptor to a high number that programs do not use; /dev/null replaces it."""
    moved = os.dup(fd)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)
    return moved


def _read() -> Dict[str, Any]:
    size = _LENGTH.unpack(_exactly(_LENGTH.size))[0]
    content = json.loads(_exactly(size))
    if not isinstance(content, dict):
        raise TypeError("the configuration is no object")
    return content


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(0)  # the host has given the sandbox up
        data += piece
    return data


def _lock_down(lock: Dict[str, Any]) -> None:
    from cellwall.linux import seccomp
    from cellwall.linux.syscalls import landlock, process
    from cellwall.linux.syscalls.libc import do_all

    if "capabilities" in lock:
        from cellwall.runtimes.docker import inside_image

        do_all(inside_image.become_user(lock))
    do_all((process.prepare_no_new_privs(),))
    abi = (
        min(lock["landlock_abi"], landlock.abi()) if lock["is_own_kernel"] else lock["landlock_abi"]
    )
    # All of an image's root is its user's, as far as the owners of its files permit.
    own = (_READABLE, (*_WRITABLE, *lock.get("volumes", ())))
    wanted = ((), ("/",)) if "capabilities" in lock else own
    readable, writable = ([path for path in each if os.path.isdir(path)] for each in wanted)
    free = os.dup(0)
    os.close(free)
    do_all(
        landlock.prepare(
            readable,
            writable,
            abi=abi,
            devices=("/dev",),
            listing=("/",),
            free_fds=(free, free + 1),
        )
    )
    seccomp.install(base64.b64decode(lock["seccomp"]))
