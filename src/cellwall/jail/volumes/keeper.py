"""Has the volumes of one engine mounted, and makes each sandbox's own view of them.

A process on the host with the engine's rights (root), in a mount namespace of its own. It reads
what the engine sends and nothing else. Its mounts exist in its namespace only: when it ends, or is
killed, the kernel unmounts them, and the loop devices free themselves, so nothing is left to sweep.

SECURITY: of a mounted volume it opens only the directory `data` of its top, which sandboxes cannot
replace, because they see what is below it and nothing else. Requests, each with an answer, `{}` or
`{"error": text, "errno": number}`:

    {"do": "mount", "id": N, "read_only": bool} and the file    mount a volume
    {"do": "writable", "id": N}                                 make a read-only mount writable
    {"do": "read_only", "id": N}                                make a writable mount read-only
    {"do": "view", "id": N, "ids": […], "groups": […],          answer with a detached mount whose
     "read_only": bool}                                         files have the ids of a sandbox
    {"do": "attach", "paths": […], "owner": [uid, gid]}         attach views, the descriptors behind
                                                                a pidfd, in that process's namespace
    {"do": "unmount", "id": N}                                  unmount it, once no sandbox sees it
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any, Dict, List

from cellwall.jail.processes import id_namespaces
from cellwall.jail.protocol import fds
from cellwall.jail.volumes import attachment
from cellwall.linux.syscalls import loops, mounts, process
from cellwall.linux.syscalls.libc import SyscallError

DATA = "data"
"""Name of the directory of a volume that sandboxes see."""
_ATTRIBUTES = mounts.ATTR_NOSUID | mounts.ATTR_NODEV
_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV
_OPTIONS = "errors=remount-ro,discard"


def main(arguments: List[str]) -> None:
    """Serve on socket `CONTROL_FD`, mounting below `FOLDER`, until its end is closed."""
    control, folder = socket.socket(fileno=int(arguments[0])), arguments[1]
    process.do(process.prepare_parent_death_signal(signal.SIGKILL))
    fds.keep_only([control.fileno()])
    process.unshare(process.CLONE_NEWNS)
    mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
    mounts.mount("tmpfs", folder, "tmpfs", _FLAGS, "size=1m,mode=700")
    keeper = _Keeper(folder)
    try:
        while True:
            _serve(keeper, control)
    except fds.ControlClosed:
        os._exit(0)


def _serve(keeper: _Keeper, control: socket.socket) -> None:
    said, received = fds.receive_message(control)
    made: List[int] = []
    try:
        made += getattr(keeper, f"do_{said['do']}")(said, received)
    except SyscallError as error:
        fds.send_message(control, {"error": str(error), "errno": error.errno})
    except OSError as error:
        problem = f"{said['do']}: {error}"
        fds.send_message(control, {"error": problem, "errno": error.errno})
    else:
        fds.send_message(control, {}, made)
    finally:
        fds.close_all([*received, *made])


class _Keeper:
    """The mounts, each at a path of its own below the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._namespaces = id_namespaces.Namespaces()

    def _point(self, said: Dict[str, Any]) -> str:
        return f"{self._folder}/{int(said['id'])}"

    def do_mount(self, said: Dict[str, Any], received: List[int]) -> List[int]:
        """Mount the file system in a file."""
        (file,) = received
        point = self._point(said)
        os.mkdir(point, 0o700)
        device, path = loops.attach(file)
        try:
            flags = _FLAGS | (mounts.MS_RDONLY if said["read_only"] else 0)
            mounts.mount(path, point, "ext4", flags, _OPTIONS)
        except OSError:
            os.rmdir(point)
            raise
        finally:
            os.close(device)
        return []

    def do_writable(self, said: Dict[str, Any], _received: List[int]) -> List[int]:
        """Make a mount writable that was made read-only."""
        flags = mounts.MS_REMOUNT | _FLAGS
        mounts.mount("none", self._point(said), None, flags, None)
        return []

    def do_read_only(self, said: Dict[str, Any], _received: List[int]) -> List[int]:
        """Make a mount read-only that is writable; EBUSY while a file is open for writing."""
        flags = mounts.MS_REMOUNT | mounts.MS_RDONLY | _FLAGS
        mounts.mount("none", self._point(said), None, flags, None)
        return []

    def do_view(self, said: Dict[str, Any], _received: List[int]) -> List[int]:
        """Return a detached mount of a volume's data, with the ids of one sandbox."""
        ranges, groups = (
            tuple((int(a), int(b), int(c)) for a, b, c in said[name]) for name in ("ids", "groups")
        )
        attributes = _ATTRIBUTES | (mounts.ATTR_RDONLY if said["read_only"] else 0)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        top = os.open(f"{self._point(said)}/{DATA}", flags)
        try:
            return [mounts.cloned_mapped(top, self._namespaces.of(ranges, groups), attributes)]
        finally:
            os.close(top)

    def do_attach(self, said: Dict[str, Any], received: List[int]) -> List[int]:
        """Attach views in the mount namespace of a process that waits."""
        uid, gid = said["owner"]
        attachment.attach(received[0], received[1:], said["paths"], (int(uid), int(gid)))
        return []

    def do_unmount(self, said: Dict[str, Any], _received: List[int]) -> List[int]:
        """Unmount a volume: now, or when a dead sandbox's last mount of it is gone."""
        point = self._point(said)
        mounts.write_back(point)
        mounts.unmount_lazily(point)
        os.rmdir(point)
        return []


def begin() -> None:
    """Start as a program; never return."""
    main(sys.argv[1:])
