"""What every image's root gets at the end, and what the host is told of it.

Used by `process`, whose root directory is the tree. The host believes none of it more than the
image itself: names, numbers and paths are used inside only.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import Any, Dict, List, Sequence

MOST_ANSWER_BYTES = 150_000
_MOST_FILE_BYTES = 1 << 20
_MOST_ACCOUNTS = 1000
_MOST_WORD = 256
_MODES = {"/tmp": 0o1777, "/var/tmp": 0o1777}  # noqa: S108 - in the tree
_FILES = {
    "/etc/hosts": "127.0.0.1 localhost cellwall\n::1 localhost\n",
    "/etc/hostname": "cellwall\n",
    "/etc/resolv.conf": "",
}
_PYTHON = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/conda/bin")


def finish(directories: Sequence[str], working_dir: str) -> None:
    """Make what the sandbox's mounts and its network need, and where it starts. Raises OSError.

    `directories` are to be directories, and no links.

    SECURITY: a mount follows links. What is mounted over is a directory of this tree, and no link
    that the image chose.
    """
    for path in directories:
        found = os.lstat(path).st_mode if os.path.lexists(path) else 0
        if not stat.S_ISDIR(found):
            if found:
                os.unlink(path)
            os.mkdir(path)
            os.chmod(path, _MODES.get(path, 0o755))
    os.makedirs(working_dir, 0o755, exist_ok=True)
    for name in os.listdir("/dev"):
        if name not in {"pts", "shm"}:
            _remove(os.path.join("/dev", name))
    for path, text in _FILES.items():
        if os.path.lexists(path):
            _remove(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o644)
        os.write(fd, text.encode())
        os.close(fd)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def accounts() -> Dict[str, Any]:
    """Return users (`[uid, gid, home, shell]` by name) and groups (gid by name) of the image."""
    users: Dict[str, List[Any]] = {}
    for words in _lines("/etc/passwd", 7):
        if words[2].isdecimal() and words[3].isdecimal():
            users.setdefault(words[0], [int(words[2]), int(words[3]), words[5], words[6]])
    groups = {w[0]: int(w[2]) for w in reversed(_lines("/etc/group", 4)) if w[2].isdecimal()}
    return {"users": users, "groups": groups}


def _lines(path: str, count: int) -> List[List[str]]:
    """Return the lines of `count` short words of a file of accounts (passwd(5), group(5))."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = os.read(fd, _MOST_FILE_BYTES).decode("utf-8", "replace")
    finally:
        os.close(fd)
    found = [line.split(":") for line in text.split("\n")[: 10 * _MOST_ACCOUNTS]]
    fitting = [w for w in found if len(w) == count and max(map(len, w)) <= _MOST_WORD]
    return fitting[:_MOST_ACCOUNTS]


def has_python() -> bool:
    """Report whether there is a Python 3 where programs usually are."""
    return any(os.path.exists(f"{folder}/python3") for folder in _PYTHON)
