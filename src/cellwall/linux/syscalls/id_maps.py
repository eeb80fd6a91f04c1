"""User namespaces into which more than one id of the host is mapped: entered, or made for mounts.

For an ordinary user the set-uid programs newuidmap(1) and newgidmap(1) write the maps; they check
the request against /etc/subuid and /etc/subgid. The root of a container, which may map the
container's ids, writes them itself. Used by `boot` and tried by `subordinate_ids`. No policy: the
callers decide which ids. The invariant: a map is written whole, or the call raises.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Dict, List, Tuple

from cellwall.linux.syscalls import process

Lines = Tuple[Tuple[int, int, int], ...]
"""A map of ids: of each line the first id inside, its distance from the first id outside, and the
number of ids."""
IDS = 65_536
"""Number of ids in an image: those that its files and processes may have."""
WHOLE: Lines = ((0, 0, IDS),)
"""Each id of an image has one outside."""
_MOST_WORDS = 2000


def text(lines: Lines, first: int) -> str:
    """Return a map as the kernel reads it, with `first` as its first id outside."""
    return "\n".join(f"{inside} {first + at} {count}" for inside, at, count in lines)


def distance(lines: Lines, number: int) -> int:
    """Return how far the id outside is from the first one; -1 for an id that has none."""
    for inside, at, count in lines:
        if inside <= number < inside + count:
            return at + number - inside
    return -1


def enter(outer: Dict[str, Any]) -> None:
    """Enter a namespace where our own id is 0 and those of `outer` follow from 1 on.

    See user_namespaces(7). `outer` has for `uid` and `gid` the first id and their number; its
    `images`, if there are any, has the same of those that follow behind them. Its `tools` has, by
    the same names, paths of programs that write the maps; it is empty where this process may write
    them. Raises OSError.
    """
    own = {"uid": os.geteuid(), "gid": os.getegid()}
    told, tell = os.pipe()
    hear, said = os.pipe()
    target = os.getpid()
    # The process that writes them has to be outside of the namespace.
    helper = os.fork()
    if helper == 0:
        try:
            os.close(tell)
            os.close(hear)
            _help(target, own, outer, told, said)
        finally:
            os._exit(1)
    os.close(told)
    os.close(said)
    try:
        process.unshare(process.CLONE_NEWUSER)
        os.write(tell, b"!")
    finally:
        os.close(tell)
        with os.fdopen(hear, "rb") as words:
            problem = words.read(_MOST_WORDS).decode("utf-8", "replace").strip()
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError(errno.EPERM, f"map ids of the host: {problem or 'no reason was given'}")


def _help(target: int, own: Dict[str, int], outer: Dict[str, Any], told: int, said: int) -> None:
    """Write both maps once the namespace exists; never return."""
    os.dup2(said, 2)
    if os.read(told, 1) != b"!":
        os._exit(1)
    try:
        for kind in ("uid", "gid"):
            extents = [(0, own[kind], 1)]
            for part in (outer, outer.get("images")):
                if part is not None:
                    first, count = part[kind]
                    extents.append((extents[-1][0] + extents[-1][2], first, count))
            tool = outer["tools"].get(kind)
            if tool:
                _run([tool, str(target), *(str(each) for extent in extents for each in extent)])
            else:
                text = "".join(f"{at} {start} {most}\n" for at, start, most in extents)
                _write(f"/proc/{target}/{kind}_map", text)
    except OSError as error:
        os.write(2, str(error).encode())
        os._exit(1)
    os._exit(0)


def _run(words: List[str]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(words[0], words, {"PATH": "/usr/bin:/bin"})  # noqa: S606 - of the system
        finally:
            os._exit(127)
    _, status = os.waitpid(pid, 0)
    if status:
        raise OSError(errno.EPERM, f"{words[0]} has refused it")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def namespace(lines: str, groups: str = "") -> int:
    """Return a new user namespace with those lines as its maps. user_namespaces(7).

    The map of groups is the same unless `groups` says another one. The child that makes it has
    ended when this returns: call it in a process of one thread. Raises OSError.
    """
    told, tell = os.pipe()
    ready_r, ready_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(tell)
            os.close(ready_r)
            process.unshare(process.CLONE_NEWUSER)
            os.write(ready_w, b"!")
            os.read(told, 1)
        finally:
            os._exit(0)
    os.close(told)
    os.close(ready_w)
    try:
        if os.read(ready_r, 1) != b"!":
            raise OSError("its maker could not make it")
        for name, text in (("uid_map", lines), ("gid_map", groups or lines)):
            _write(f"/proc/{pid}/{name}", text)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(tell)
        os.close(ready_r)
        os.waitpid(pid, 0)
