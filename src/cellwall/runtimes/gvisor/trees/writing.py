"""Writing down: have the `runsc` of one sandbox write it to a file, and pack its work area. Blocks.

The command runs in the namespaces of the sandbox's keeper, where the state of `runsc` is. What it
writes has a name only meanwhile, in a directory with the owner label of this process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cellwall.linux import owner_label
from cellwall.linux.removal import remove_tree
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.runtimes.gvisor.trees import saved_area

_WITHIN_S = 60.0
_SAID = 300
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
_CONTAINER = "cell"


def check_tools() -> None:
    """Raise HostUnsupported if this host lacks a program that copies need."""
    for path, package in ((saved_area.TAR, "tar"), (_nsenter(), "util-linux")):
        if not path or not os.access(path, os.X_OK):
            raise HostUnsupported(
                "copies", f"gVisor: copies need {package}", remedy=f"apt-get install {package}"
            )


def _nsenter() -> str:
    return shutil.which("nsenter", path="/usr/bin:/bin:/usr/sbin:/sbin") or ""


def free_bytes(file: int) -> int:
    """Return the room on the file system of a file."""
    room = os.fstatvfs(file)
    return room.f_bavail * room.f_frsize


def first_process(keeper: int) -> int:
    """Return the pid of `runsc`, the one child of a keeper. Raises SandboxBroken."""
    try:
        return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    except (OSError, IndexError):
        raise SandboxBroken("gVisor: copy the sandbox: it has ended", remedy="") from None


def take(
    keeper: int,
    runsc: Sequence[str],
    folder: Path,
    flags: Sequence[str],
    within_s: float = _WITHIN_S,
) -> list[int]:
    """Have a sandbox written down; return descriptors of the image's files, which have no name now.

    `runsc`: the program and its flags; `flags`: those of `checkpoint`. Raises SandboxBroken.
    """
    made = folder / owner_label.new_label()
    made.mkdir(mode=0o700, parents=True)
    words = [_nsenter(), f"--target={first_process(keeper)}", "--pid", "--mount", "--net", *runsc]
    words += ["checkpoint", f"--image-path={made}", *flags, _CONTAINER]
    try:
        done = subprocess.run(
            words,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=within_s,
            env=_ENVIRONMENT,
            cwd="/",
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-_SAID:]
            raise SandboxBroken(f"gVisor: runsc checkpoint: {said}", remedy="fork it again")
        return _opened(made)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxBroken(f"gVisor: runsc checkpoint: {error}", remedy="fork it again") from error
    finally:
        remove_tree(str(made))


def _opened(folder: Path) -> list[int]:
    """Open the files of an image: the first alone, or all."""
    names = set(os.listdir(folder))
    wanted = [name for name in saved_area.IMAGE if name in names]
    if len(wanted) not in (1, len(saved_area.IMAGE)) or len(wanted) != len(names):
        raise OSError(f"an image of {sorted(names)}; is the disk full?")
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for name in wanted:
            fd = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            held.callback(os.close, fd)
            found.append(fd)
        held.pop_all()
    return found


def pack(area: int, target: int) -> None:
    """Write the archive of a work area to a file. Raises SandboxBroken."""
    done = subprocess.run(
        saved_area.pack_words(area),
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=target,
        stderr=subprocess.PIPE,
        timeout=_WITHIN_S,
        env=_ENVIRONMENT,
        pass_fds=(area,),
        cwd="/",
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-_SAID:]
        raise SandboxBroken(f"gVisor: pack the work area: {said}", remedy="fork it again")


def sweep(folder: Path) -> int:
    """Remove images of processes that are gone; return their number."""
    removed = 0
    for path in folder.glob("*"):
        if owner_label.is_dead(path.name):
            remove_tree(str(path))
            removed += 1
    return removed
