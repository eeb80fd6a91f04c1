"""Volumes: named file systems that outlive sandboxes, and where a sandbox sees one.

Pure values and their checks; `engine.volumes` keeps volumes, and a runtime mounts them. The
invariant: a checked path hides nothing that the sandbox's own system needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cellwall.model.errors import UsageError

MOST_IN_SANDBOX = 4
"""Most volumes of one sandbox: each is a descriptor on its way there."""
MOST_SIZE_MB = 1 << 20
LEAST_INODES = 16
MOST_INODES = 1 << 28
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PART = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_PARTS = 8
_WHOLE = frozenset({"/", "/home", "/home/user", "/opt", "/root", "/tmp", "/var", "/var/tmp"})  # noqa: S108 - in a sandbox
"""Directories that a volume may lie in, and not take the place of."""
_SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/none"),
    *("/opt/cellwall", "/opt/env", "/opt/var", "/proc", "/run", "/sbin", "/sys", "/usr"),
)
"""Directories in which no volume may lie."""
_SHAPES = "give {'data': '/data'}, or ['data:/data:ro']"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume as it is now."""

    name: str
    size_mb: int
    """Number of MiB that files may take in it; the last block of them can be used."""
    inodes: int
    """Number of files and directories that it may have."""
    created_at: float
    """When it was made, in seconds since the epoch."""
    used_bytes: int
    """Bytes in use when it was last detached from a sandbox's host."""
    used_inodes: int
    disk_bytes: int
    """Bytes that it takes on the host's disk now."""


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """Where a sandbox sees a volume."""

    name: str
    path: str
    """Absolute path of the directory inside."""
    read_only: bool = False
    """Whether the sandbox may only read; any number of sandboxes may, and only one may write."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for a name or a path that cannot be."""
        check_name(self.name)
        _check_path(self.path)


def check_name(name: object) -> str:
    """Return the name of a volume; `UsageError` if it cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"volume: {name!r} is not a name",
            remedy="use up to 63 of a-z, 0-9, `.`, `_` and `-`, a letter or digit first",
        )
    return name


def check_size(size_mb: object, inodes: object) -> tuple[int, int]:
    """Return size in MiB and number of inodes, by default one for 16 KiB; or `UsageError`."""
    if type(size_mb) is not int or not 1 <= size_mb <= MOST_SIZE_MB:
        raise UsageError(
            f"volume: a size of {size_mb!r} MiB", remedy=f"give a number from 1 to {MOST_SIZE_MB}"
        )
    wanted = max(1024, size_mb * 64) if inodes is None else inodes
    if type(wanted) is not int or not LEAST_INODES <= wanted <= MOST_INODES:
        raise UsageError(
            f"volume: {wanted!r} inodes",
            remedy=f"give a number from {LEAST_INODES} to {MOST_INODES}",
        )
    return size_mb, wanted


def mounts_of(given: object) -> tuple[VolumeMount, ...]:
    """Return the mounts that a caller means: none for None.

    A mapping of names to paths (`{"data": "/data"}`, `{"data": "/data:ro"}`), or a list of
    `name:path`, `name:path:ro` and `VolumeMount`. Raises `UsageError`.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        words = [_of_pair(name, path) for name, path in given.items()]
    elif isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        words = [each if isinstance(each, VolumeMount) else _of_word(each) for each in given]
    else:
        raise UsageError(f"volumes: {type(given).__name__} is none of the shapes", remedy=_SHAPES)
    return _checked(tuple(words))


def _of_pair(name: Any, path: Any) -> VolumeMount:  # noqa: ANN401 - of a caller
    if not isinstance(path, str):
        raise UsageError(f"volumes: the path of {name!r} is no text", remedy=_SHAPES)
    return _of_word(f"{check_name(name)}:{path}")


def _of_word(word: Any) -> VolumeMount:  # noqa: ANN401 - of a caller
    parts = word.split(":") if isinstance(word, str) else []
    if len(parts) not in {2, 3} or parts[2:] not in ([], ["ro"], ["rw"]):
        raise UsageError(f"volumes: {word!r} is not NAME:PATH or NAME:PATH:ro", remedy=_SHAPES)
    return VolumeMount(parts[0], parts[1], parts[2:] == ["ro"])


def _check_path(path: object) -> None:
    parts = path.split("/")[1:] if isinstance(path, str) and path.startswith("/") else []
    is_plain = all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts)
    if not parts or not is_plain or len(parts) > _MOST_PARTS:
        raise UsageError(
            f"volumes: {path!r} is not a plain absolute path",
            remedy="use a path such as /data: letters, digits, `.`, `_` and `-`, no `..`",
        )
    if path in _WHOLE or any(is_below(str(path), each) for each in _SYSTEM):
        raise UsageError(
            f"volumes: {path} would hide a part of the sandbox's own system",
            remedy="use a directory of its own, such as /data or /home/user/data",
        )


def is_below(path: str, above: str) -> bool:
    """Whether a path is `above` or lies below it."""
    return path == above or path.startswith(f"{above.rstrip('/')}/")


def _checked(mounts: tuple[VolumeMount, ...]) -> tuple[VolumeMount, ...]:
    if len(mounts) > MOST_IN_SANDBOX:
        raise UsageError(
            f"volumes: {len(mounts)} are more than {MOST_IN_SANDBOX}",
            remedy="put what belongs together into one volume",
        )
    for number, each in enumerate(mounts):
        for other in mounts[:number]:
            if each.name == other.name:
                raise UsageError(
                    f"volumes: {each.name} is named twice", remedy="use one path for it"
                )
            if is_below(each.path, other.path) or is_below(other.path, each.path):
                raise UsageError(
                    f"volumes: {each.path} and {other.path} lie in each other",
                    remedy="use directories beside each other",
                )
    return mounts
