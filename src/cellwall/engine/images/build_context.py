"""The files that a Dockerfile copies, from a directory of the caller's: found, digested, packed.

Used by `builder`, in a thread. The directory may hold what a stranger wrote: a link is packed as a
link and never followed, a path that leads out is refused, and counts and bytes have bounds.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cellwall.images.dockerfile import Instruction
from cellwall.images.ignored import Ignored
from cellwall.images.image import Compression, Layer, compression_of

MOST_FILES = 200_000
MOST_BYTES = 4 << 30
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """A tar of what one instruction copies."""

    digest: str
    """Digest of names, modes, links and content."""
    folder: str
    """Directory inside, below which it is unpacked."""


class Context:
    """One directory of the caller's."""

    def __init__(self, folder: Path) -> None:
        self._top = folder.resolve()
        self._ignored = Ignored(self._top)

    def pack(
        self, instruction: Instruction, sources: Sequence[str], target: str, out: Path
    ) -> Packed:
        """Write a tar of `sources` for `target`, which ends with `/` if it is a directory.

        Raises `DockerfileInvalid`, OSError.
        """
        mode = instruction.flags.get("chmod")
        if mode is not None and (len(mode) > 4 or any(digit not in "01234567" for digit in mode)):
            raise instruction.wrong(f"--chmod={mode[:20]} is no octal number")
        found = [path for word in sources for path in self._matching(instruction, word)]
        is_folder = target.endswith("/") or len(found) > 1
        if len(found) > 1 and not target.endswith("/"):
            raise instruction.wrong("several files need a directory", "end the last word with `/`")
        with out.open("wb") as file:
            packing = _Packing(instruction, file, None if mode is None else int(mode, 8))
            for path in found:
                if path.is_dir() and not path.is_symlink():
                    is_folder = True
                    for below, name in self._below(path):
                        packing.add(below, name)
                else:
                    packing.add(path, path.name if is_folder else os.path.basename(target))
            digest = packing.finish()
        return Packed(digest, target if is_folder else os.path.dirname(target) or "/")

    def layer(self, instruction: Instruction, word: str, out: Path) -> Layer:
        """Copy an archive to `out`, and return it as a layer. Raises `DockerfileInvalid`.

        Only its digest is computed here; it is unpacked as any stranger's.
        """
        (path,) = self._matching(instruction, word)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with open(os.open(path, flags), "rb") as file, out.open("xb") as copy:
                shutil.copyfileobj(file, copy, _PIECE)
            compression, diff_id = _digested(out)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise instruction.wrong(f"{word[:80]!r} cannot be read: {error}") from None
        return Layer(diff_id, compression, out, 0, out.stat().st_size)

    def _matching(self, instruction: Instruction, word: str) -> list[Path]:
        parts = [part for part in word.split("/") if part not in {"", "."}]
        if ".." in parts or "\0" in word:
            raise instruction.wrong(f"{word[:80]!r} leads out of the context")
        if not any(character in word for character in "*?["):
            found = [self._top.joinpath(*parts)]
        else:
            found = sorted(self._top.glob("/".join(parts)))
        kept = [path for path in found if os.path.lexists(path) and not self._is_ignored(path)]
        if not kept:
            raise instruction.wrong(
                f"the context has no {word[:80]!r}", "look at .dockerignore, too"
            )
        for path in kept:
            # The folders on the way may be links: what they lead to has to be in the context.
            if not path.parent.resolve().is_relative_to(self._top) and path != self._top:
                raise instruction.wrong(f"{word[:80]!r} leads out of the context by a link")
            if not (path.is_symlink() or path.is_file() or path.is_dir()):
                raise instruction.wrong(f"{path.name[:80]!r} is no file, directory or link")
        return kept

    def _below(self, top: Path) -> Iterator[tuple[Path, str]]:
        for folder, names, files in os.walk(top):
            names.sort()
            for name in sorted([*names, *files]):
                path = Path(folder, name)
                if not self._is_ignored(path):
                    yield path, str(path.relative_to(top))
            names[:] = [name for name in names if not self._is_ignored(Path(folder, name))]

    def _is_ignored(self, path: Path) -> bool:
        if path == self._top:
            return False
        return self._ignored.has(str(path.relative_to(self._top)))


def _digested(archive: Path) -> tuple[Compression, str]:
    """Return how an archive is compressed, and the digest of what it holds."""
    digest, size = hashlib.sha256(), 0
    with archive.open("rb") as file:
        compression = compression_of(file.read(4))
        file.seek(0)
        content = gzip.GzipFile(fileobj=file) if compression == "gzip" else file
        while piece := content.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return compression, f"sha256:{digest.hexdigest()}"


class _Packing:
    """A tar being written; owners are root's, and times are none's, so that digests say content."""

    def __init__(self, instruction: Instruction, file: IO[bytes], mode: int | None) -> None:
        self._instruction = instruction
        self._tar = tarfile.open(mode="w", fileobj=file, format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `finish`
        self._file = file
        self._mode = mode
        self._count = self._bytes = 0

    def add(self, path: Path, name: str) -> None:
        """Add what lies at a path of the host's, itself if it is a link."""
        status = os.lstat(path)
        member = tarfile.TarInfo(name)
        member.mode = stat.S_IMODE(status.st_mode) if self._mode is None else self._mode
        self._count += 1
        self._bytes += status.st_size
        if self._count > MOST_FILES or self._bytes > MOST_BYTES:
            raise self._instruction.wrong(
                f"it copies more than {MOST_FILES} files or {MOST_BYTES} bytes"
            )
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            self._tar.addfile(member)
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            self._tar.addfile(member)
        elif stat.S_ISREG(status.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(path, flags), "rb") as file:
                member.size = os.fstat(file.fileno()).st_size
                self._tar.addfile(member, file)

    def finish(self) -> str:
        """Write the end; return the digest of all."""
        self._tar.close()
        self._file.flush()
        digest = hashlib.sha256()
        with open(self._file.name, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
        return digest.hexdigest()
