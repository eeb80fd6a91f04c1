"""Node name: what a server among several is called, drawn once for its state directory.

Called by `serve` while it holds the state's lock, so no other process draws one at the same time. A
name is a place in ids (`model.ids`) and no secret; which node has it, and that none has had it
before, is the concern of whatever routes by it. The invariant: a name is in its file, whole and on
disk, before anything is called by it.
"""

from __future__ import annotations

import os
from pathlib import Path

from cellwall.model.errors import UsageError
from cellwall.model.ids import AUTO, is_node, new_node

_MOST_BYTES = 64


def name_of(setting: str, directory: Path) -> str:
    """Return the name that the setting stands for; empty: the server has none.

    `directory`: the state directory. Raises UsageError for a file that holds no name.
    """
    if setting != AUTO:
        return setting
    path = _file(directory)
    try:
        with open(path, "rb", opener=_not_followed) as file:
            name = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return draw(directory)
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}") from None
    if not is_node(name):
        raise _wrong(path, "holds no name of a node")
    return name


def draw(directory: Path) -> str:
    """Return a name that the state directory has from now on, in the place of an earlier one.

    Raises UsageError if it cannot be written.
    """
    path, name = _file(directory), new_node()
    made = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.unlink(missing_ok=True)  # of a server that was killed here
        with open(made, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(name.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise UsageError(
            f"node: write {path}: {error.strerror}",
            remedy="give --state-dir a directory you may write, or name the node in the settings",
        ) from None
    return name


def _file(directory: Path) -> Path:
    return directory / "server" / "node"


def _not_followed(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _wrong(path: Path, what: str) -> UsageError:
    return UsageError(
        f"node: {path} {what}",
        remedy="write the name into it that the node had, or remove it for a new one",
    )
