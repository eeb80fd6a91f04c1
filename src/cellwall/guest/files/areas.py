"""Copy everything that a session may have written to files into another sandbox.

Run in a child of init (`child_tasks.py`). The stream is a tar of all areas, and of what was made in
`/`; the first part of each name is the number of the area. SECURITY: what arrives was written by
hostile code; it is unpacked as any archive of a caller's, with the rights of the sandbox.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.files import metadata
from cellwall.guest.files.tree_walk import AFTER, walk_tree
from cellwall.guest.files.trees import COPY_BYTES, Packing, Unpacking, archived_name

if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.files.child_tasks import Task, Workers
    from cellwall.guest.files.files import Files
    from cellwall.guest.files.metadata import FileMetadata, Texts

_METADATA = "metadata"
"""Name of the last part, where it is no file but the list of files that have metadata."""
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  the sandbox's own


def areas(home: str) -> list[str]:
    """Return the directories that a sandbox's programs may write to, by their real paths."""
    return [os.path.realpath(each) for each in (home, *_SHARED)]


def own_of_root() -> list[str]:
    """Return the names of what its user has made in `/`, where that can be told.

    Where the user is the owner of `/` as well (an engine of an ordinary user), it cannot be.
    """
    user = os.getuid()
    if os.stat("/").st_uid == user:
        return []
    with os.scandir("/") as entries:
        return sorted(each.name for each in entries if _is_of(each, user))


def _is_of(entry: os.DirEntry[str], user: int) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == user
    except OSError:
        return False


def are_empty(home: str) -> bool:
    """Whether no area has an entry."""
    if own_of_root():
        return False
    for path in areas(home):
        try:
            with os.scandir(path) as entries:
                if next(entries, None) is not None:
                    return False
        except OSError:
            continue
    return True


def departure(home: str, kept: FileMetadata | None = None) -> Task:
    """Return a task that writes all areas as one tar stream, with the metadata of files."""
    return lambda _input, output_w: _pack(areas(home), output_w, kept)


def arrival(home: str) -> Task:
    """Return a task that unpacks such a stream, and writes the list of metadata to its output."""
    return lambda input_r, output_w: _unpack(areas(home), input_r, output_w)


def take(workers: Workers, files: Files, number: int, home: str, fd: int) -> None:
    """Unpack the stream of a descriptor in a worker, then keep the metadata that came with it."""
    # A file without a name, because a memfd is refused where no cgroup counts its memory.
    listed = os.open(home, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def on_end(is_done: bool) -> None:
        try:
            size = os.fstat(listed).st_size
            if is_done and size:
                files.opened_metadata().arrive(metadata.read(os.pread(listed, size, 0)))
        finally:
            os.close(listed)

    try:
        workers.start(number, arrival(home), (fd, listed), on_end)
    except BaseException:
        os.close(listed)
        raise


def _pack(tops: Sequence[str], output_w: int, kept: FileMetadata | None) -> Header:
    found: list[tuple[str, Texts]] = []
    with os.fdopen(output_w, "wb", closefd=False) as stream:
        packing = Packing(stream)
        for name, archived, status in _all(tops):
            packing.add(name, archived, status)
            if kept is not None and (texts := kept.of(name, status, archived)):
                found.append((archived, texts))
        if found:
            packing.add_bytes(_METADATA, metadata.written(found))
        return packing.finish()


def _all(tops: Sequence[str]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield each entry: its name from where the process is now, its name in the archive."""
    for number, top in enumerate(tops):
        yield from _below(top, str(number))
    for name in own_of_root():
        path, archived = f"/{name}", f"{len(tops)}/{name}"
        status = os.lstat(path)
        yield path, archived, status
        if stat.S_ISDIR(status.st_mode):
            yield from _below(path, archived)


def _below(top: str, archived: str) -> Iterator[tuple[str, str, os.stat_result]]:
    for visit in walk_tree(top):
        if visit.moment != AFTER:
            yield visit.name, f"{archived}/{archived_name(visit)}", visit.status


def _unpack(tops: Sequence[str], input_r: int, output_w: int) -> Header:
    unpacking = [
        Unpacking(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) for top in (*tops, "/")
    ]
    try:
        with os.fdopen(input_r, "rb", closefd=False) as stream, tarfile.open(
            mode="r|", fileobj=stream, bufsize=COPY_BYTES
        ) as tar:
            for member in tar:
                if member.name == _METADATA:
                    _hand_on(tops, tar, member, output_w)
                    continue
                number, _, member.name = member.name.partition("/")
                unpacking[int(number)].add(tar, member)
                tar.members = []  # type: ignore[attr-defined]  # or it remembers every one
    except (tarfile.TarError, EOFError, ValueError, OverflowError, IndexError) as error:
        raise Refusal("invalid", f"copy files: not the files of a sandbox: {error}") from None
    return {
        "files": sum(each.files for each in unpacking),
        "bytes": sum(each.bytes for each in unpacking),
    }


def _hand_on(tops: Sequence[str], tar: tarfile.TarFile, member: tarfile.TarInfo, fd: int) -> None:
    """Write the list of metadata to a file, with the paths that the files have here."""
    content = tar.extractfile(member)
    if content is None or member.size > metadata.MOST_LIST_BYTES:
        raise Refusal("invalid", "copy files: its list of metadata is none, or too long")
    found = []
    for archived, texts in metadata.read(content.read()):
        number, _, name = archived.partition("/")
        found.append((os.path.join((*tops, "/")[int(number)], name), texts))
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(metadata.written(found))
