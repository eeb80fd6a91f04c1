"""Saved work area: the files of a sandbox that was written down, as an archive and back.

`bring_back` runs out of a bundle in the keeper's own mount namespace, before `runsc`: standard
library only, and the host's `tar`, in the sandbox's cgroups. `archive` runs in the engine. The
archive is written by `tar` of a tree that the sandbox's code has named the files of, and is read
into an empty area of the copy's own size.
"""

from __future__ import annotations

import os
import socket

from cellwall.linux.syscalls import mounts

TAR = "/usr/bin/tar"
_KEEP = ("--numeric-owner", "--xattrs", "--xattrs-include=user.*", "--sparse")
_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV
IMAGE = ("checkpoint.img", "pages_meta.img", "pages.img")
"""Names of the files of an image in the directory that `runsc` is told: the first alone, which has
all, or the kernel in the first and memory in the others.
"""


def pack_words(area: int) -> list[str]:
    """Return the command that writes an area's archive to its standard output."""
    return [
        TAR,
        *_KEEP,
        "--format=posix",
        "--create",
        "--file=-",
        f"--directory=/proc/self/fd/{area}",
        ".",
    ]


def image_of(place: str) -> str:
    """Return the directory, in the keeper's mount namespace, in which `runsc` finds the image."""
    return f"{place}/image"


def bring_back(place: str, area: str, options: str) -> None:
    """Mount the area of a copy at `area`, and fill it; the files are in the channel ahead."""
    with socket.socket(fileno=os.dup(0)) as channel:
        _, (archive, *image), _, _ = socket.recv_fds(channel, 1, 1 + len(IMAGE))
    os.mkdir(area, 0o700)
    mounts.mount("tmpfs", area, "tmpfs", _FLAGS, options)
    words = [TAR, *_KEEP, "--extract", "--preserve-permissions", "--delay-directory-restore"]
    words += [f"--directory={area}", "--file=-"]
    child = os.posix_spawn(
        TAR, words, {"PATH": "/usr/bin:/bin"}, file_actions=[(os.POSIX_SPAWN_DUP2, archive, 0)]
    )
    _, status = os.waitpid(child, 0)
    if status:
        raise OSError(f"the archive of the work area: tar ended with status {status}")
    os.close(archive)
    os.mkdir(image_of(place), 0o700)
    # The files have no names: `runsc` opens them through the descriptors that it inherits.
    for fd, name in zip(image, IMAGE, strict=False):  # the first alone, or all
        os.symlink(f"/proc/self/fd/{fd}", f"{image_of(place)}/{name}")
        os.set_inheritable(fd, True)
