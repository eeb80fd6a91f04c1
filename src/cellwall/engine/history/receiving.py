"""The guest's description of a work area, read record by record; contents go into the pack.

Used by `history`. The guest is hostile: lengths are checked before anything of that size is kept,
and more entries than were asked for end the reading. Everything wrong is a `FrameError`.
"""

from __future__ import annotations

from cellwall.engine.history.manifest import Manifest, name_of
from cellwall.engine.history.pack import Pack
from cellwall.guest.files import tree_records as records
from cellwall.runtimes.channel.frames import FrameError

_MOST_UNSTEADY = 100
_MOST_TARGET_BYTES = 4096
_MOST_PATHS_BYTES = 32 << 20


class Receiver:
    """One description on its way in. Blocking where it writes; `feed` is called in a thread."""

    def __init__(self, pack: Pack | None, most_files: int) -> None:
        """`pack` takes the contents; None if none was asked for."""
        self._pack = pack
        self._most_entries = most_files + 1
        self._held = bytearray()
        self._file: bytes | None = None
        self._paths_bytes = 0
        self.manifest = Manifest()
        self.unsteady: list[str] = []

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises `FrameError`, OSError of the pack."""
        self._held += data
        at = 0
        while (taken := self._take(at)) > 0:
            at += taken
        del self._held[:at]

    def finish(self) -> Manifest:
        """Return the whole. Raises `FrameError` if it is not whole."""
        if self._held or self._file is not None or not self.manifest.entries:
            raise FrameError("tree_scan: it ends in the middle")
        return self.manifest

    def _take(self, at: int) -> int:
        """Take one record; return its length, 0 if it is not there yet."""
        tag = bytes(self._held[at : at + 2])
        if len(tag) < 2:
            return 0
        if tag == b"D-":
            return self._take_piece(at)
        if tag in {b"Z-", b"Z!"}:
            self._take_end(is_steady=tag == b"Z-")
            return records.END.size
        if tag[:1] != b"E" or self._file is not None:
            raise FrameError("tree_scan: a record of no known kind")
        return self._take_entry(at, tag[1:])

    def _take_piece(self, at: int) -> int:
        if self._file is None or self._pack is None:
            raise FrameError("tree_scan: a piece of no file")
        if len(self._held) - at < records.PIECE.size:
            return 0
        offset: int
        length: int
        _, offset, length = records.PIECE.unpack_from(self._held, at)
        if not 0 < length <= records.STEP_BYTES:
            raise FrameError("tree_scan: a piece of a length that is not sent")
        start = at + records.PIECE.size
        if len(self._held) - start < length:
            return 0
        self._pack.add(offset, bytes(self._held[start : start + length]))
        return records.PIECE.size + length

    def _take_end(self, *, is_steady: bool) -> None:
        if self._file is None or self._pack is None:
            raise FrameError("tree_scan: the end of no file")
        self.manifest.settle(self._file, self._pack.finish())
        if not is_steady:
            self._note_unsteady(self._file)
        self._file = None

    def _take_entry(self, at: int, kind: bytes) -> int:
        if len(self._held) - at < records.ENTRY.size:
            return 0
        path_bytes: int
        target_bytes: int
        _, *numbers, digest, path_bytes, target_bytes = records.ENTRY.unpack_from(self._held, at)
        if path_bytes > records.MOST_PATH_BYTES or target_bytes > _MOST_TARGET_BYTES:
            raise FrameError("tree_scan: a path of a length that is not sent")
        start = at + records.ENTRY.size
        if len(self._held) - start < path_bytes + target_bytes:
            return 0
        self._paths_bytes += path_bytes + target_bytes
        if (
            len(self.manifest.entries) >= self._most_entries
            or self._paths_bytes > _MOST_PATHS_BYTES
        ):
            raise FrameError("tree_scan: more than was asked for")
        path = bytes(self._held[start : start + path_bytes])
        target = bytes(self._held[start + path_bytes : start + path_bytes + target_bytes])
        self._add(kind, path, (digest, target), tuple(numbers))
        return records.ENTRY.size + path_bytes + target_bytes

    def _add(
        self, kind: bytes, path: bytes, more: tuple[bytes, bytes], numbers: tuple[int, ...]
    ) -> None:
        digest, target = more
        has_content = kind == records.CONTENT
        if kind == records.UNSTEADY:
            self._note_unsteady(path)
        if has_content:
            kind = records.FILE
        elif kind in {records.FILE, records.UNSTEADY}:
            kind = records.FILE
            if self._pack is not None and not self._pack.has(digest):
                raise FrameError("tree_scan: a file without its content")
        if (kind == records.LINK) != bool(target):
            raise FrameError("tree_scan: a link without target, or a target without link")
        made = self.manifest.add((kind, path, digest, target), numbers)
        if has_content:
            if self._pack is None:
                raise FrameError("tree_scan: content that was not asked for")
            self._pack.begin(made.size)
            self._file = path

    def _note_unsteady(self, path: bytes) -> None:
        if len(self.unsteady) < _MOST_UNSTEADY:
            self.unsteady.append(name_of(path))
