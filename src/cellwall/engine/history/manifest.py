"""A manifest: every entry of a work area at one moment, and what differs between two.

Made by `receiving` from what the guest says. It reads no file. The invariant: a manifest is a tree,
whatever the guest sent: each path is relative, without `.` and `..`, there once, below a directory
that came before it. Nothing on the host is ever opened by such a path.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cellwall.guest.files import tree_records as records
from cellwall.model.history import FileChange
from cellwall.runtimes.channel.frames import FrameError

_MOST_NAME_BYTES = 255
_TYPES = {records.FILE: "file", records.FOLDER: "directory", records.LINK: "symlink"}
_KINDS = frozenset(
    {
        *(records.FILE, records.FOLDER, records.LINK),
        *(records.FIFO, records.SOCKET, records.DEVICE),
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a work area."""

    kind: bytes
    path: bytes
    mode: int
    mtime_ns: int
    size: int
    uid: int
    gid: int
    digest: bytes
    target: bytes
    first_name: bytes = b""
    """Path of the first name of a file with several, of which this is another."""

    @property
    def type(self) -> str:
        """What it is, in a word of `FileEntry`."""
        return _TYPES.get(self.kind, "other")

    def is_like(self, other: Entry) -> bool:
        """Whether type and content are the same, by another path perhaps."""
        return (self.kind, self.digest, self.target) == (other.kind, other.digest, other.target)


class Manifest:
    """The entries of one moment, by path."""

    def __init__(self) -> None:
        """Begin with nothing; the first entry is the top, whose path is empty."""
        self.entries: dict[bytes, Entry] = {}
        self._names: dict[tuple[int, int], bytes] = {}

    def add(self, raw: tuple[bytes, ...], numbers: tuple[int, ...]) -> Entry:
        """Add what the guest described, and return it. Raises `FrameError`.

        `raw` are kind, path, digest and target; `numbers` mode to gid as `ENTRY` has them.
        """
        kind, path, digest, target = raw
        mode, mtime_ns, size, device, inode, links, uid, gid = numbers
        self._check(kind, path)
        first_name = b""
        if kind == records.FILE and links > 1:
            first_name = self._names.setdefault((device, inode), path)
        first = self.entries.get(first_name) if first_name else None
        if first is not None:  # gVisor may answer another time by each name of one file
            mode, mtime_ns, uid, gid = first.mode, first.mtime_ns, first.uid, first.gid
        made = Entry(
            kind,
            path,
            mode & 0o7777,
            mtime_ns,
            size if kind == records.FILE else 0,
            uid,
            gid,
            digest,
            target,
            b"" if first is None else first_name,
        )
        self.entries[path] = made
        return made

    def _check(self, kind: bytes, path: bytes) -> None:
        if kind not in _KINDS or path in self.entries:
            raise FrameError("tree_scan: an entry of no known kind, or twice")
        if not path and not self.entries and kind == records.FOLDER:
            return
        parent, _, name = path.rpartition(b"/")
        above = self.entries.get(parent)
        is_name = name not in {b"", b".", b".."} and len(name) <= _MOST_NAME_BYTES
        if above is None or above.kind != records.FOLDER or not is_name or b"\0" in name:
            raise FrameError("tree_scan: a path that is none, or below no directory")

    def settle(self, path: bytes, digest: bytes) -> None:
        """Set the digest of a file whose content has been received."""
        found = self.entries[path]
        self.entries[path] = replace(found, digest=digest)

    def packed(self) -> bytes:
        """Return it as bytes, for `unpacked`."""
        return zlib.compress(
            b"".join(
                records.entry(
                    each.kind,
                    each.path,
                    (each.mode, each.mtime_ns, each.size, 0, 0, 0, each.uid, each.gid),
                    (each.digest, each.first_name or each.target),
                )
                for each in self.entries.values()
            ),
            1,
        )

    @classmethod
    def unpacked(cls, raw: bytes) -> Manifest:
        """Return what `packed` made."""
        made = cls()
        data, at = zlib.decompress(raw), 0
        while at < len(data):
            tag, mode, mtime_ns, size, _, _, _, uid, gid, digest, path_bytes, target_bytes = (
                records.ENTRY.unpack_from(data, at)
            )
            at += records.ENTRY.size
            path = data[at : at + path_bytes]
            target = data[at + path_bytes : at + path_bytes + target_bytes]
            at += path_bytes + target_bytes
            kind = tag[1:]
            first_name = target if kind == records.FILE else b""
            made.entries[path] = Entry(
                kind,
                path,
                mode,
                mtime_ns,
                size,
                uid,
                gid,
                digest,
                b"" if first_name else target,
                first_name,
            )
        return made


def changes(before: Manifest, after: Manifest) -> list[FileChange]:
    """Return what differs, by path: a renamed file is one whose content is at another path.

    Times alone are no change.
    """
    found: list[FileChange] = []
    gone = {path: each for path, each in before.entries.items() if path not in after.entries}
    new = {path: each for path, each in after.entries.items() if path not in before.entries}
    for old, moved in list(_renamed(gone.values(), new.values())):
        found.append(_change(old, moved))
        del gone[old.path], new[moved.path]
    found += [_change(each, None) for each in gone.values()]
    found += [_change(None, each) for each in new.values()]
    for path, each in after.entries.items():
        old_entry = before.entries.get(path)
        if old_entry is None or (each.is_like(old_entry) and each.mode == old_entry.mode):
            continue
        found.append(_change(old_entry, each))
    return sorted(found, key=lambda change: change.path)


def _renamed(gone: Iterable[Entry], new: Iterable[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Yield pairs of files of the same content, where only one of each has it."""
    olds, news = _by_content(gone), _by_content(new)
    for digest, old in olds.items():
        match = news.get(digest)
        if old is not None and match is not None:
            yield old, match


def _by_content(entries: Iterable[Entry]) -> dict[bytes, Entry | None]:
    found: dict[bytes, Entry | None] = {}
    for each in entries:
        if each.kind == records.FILE and each.size:
            found[each.digest] = None if each.digest in found else each
    return found


def _change(before: Entry | None, after: Entry | None) -> FileChange:
    shown = after or before
    assert shown is not None  # noqa: S101  one of them is there
    if before is None or after is None:
        kind = "added" if before is None else "deleted"
    else:
        kind = "modified" if before.path == after.path else "renamed"
    return FileChange(
        path=name_of(shown.path),
        kind=kind,  # type: ignore[arg-type]  # four words, of the same type
        type=shown.type,
        size_before=None if before is None else before.size,
        size_after=None if after is None else after.size,
        mode_before=None if before is None else before.mode,
        mode_after=None if after is None else after.mode,
        old_path=name_of(before.path) if before is not None and kind == "renamed" else None,
    )


def name_of(path: bytes) -> str:
    """Return a path as callers see it: bytes that are no UTF-8 as surrogate escapes."""
    return path.decode("utf-8", "surrogateescape") or "."


def differing(wanted: Manifest, found: Manifest) -> list[bytes]:
    """Return the paths at which a restored work area is not what it was, by all that is kept."""
    paths = wanted.entries.keys() | found.entries.keys()
    return sorted(
        path
        for path in paths
        if not _is_restored(wanted.entries.get(path), found.entries.get(path))
    )


def _is_restored(wanted: Entry | None, found: Entry | None) -> bool:
    if wanted is not None and found is None:
        return wanted.kind in {records.SOCKET, records.DEVICE}
    if wanted is not None and wanted.kind in {records.SOCKET, records.DEVICE} and found is not None:
        return found.kind == wanted.kind
    return wanted == found
