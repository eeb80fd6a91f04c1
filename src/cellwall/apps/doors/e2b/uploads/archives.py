"""Archives that clients have uploaded for builds, on disk until a day after their last use.

    e2b-uploads/<digest of the tenant>/<hash>     one archive
    e2b-uploads/.lent-…                           archives of a build that is being started

A client names an archive by a hash over its files, which cannot be checked here, so a tenant has
names of its own. Nothing is unpacked or read: the sandbox of the step does that. The invariants:
an archive is whole; a tenant has at most its share of the disk, and all have at most `_TENANTS`
such shares.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cellwall.model.errors import CapacityError, UsageError
from cellwall.model.ids import new_id

ARCHIVE = "files.tar"
"""Name by which a build sees each."""
KEPT_S = 24 * 3600.0
_TENANTS = 4
"""Number of tenants' shares that all tenants have together."""
_MOST_FILES = 1000
_MOST_AT_ONCE = 4
"""Archives of a tenant that come at once."""
_PIECE = 1 << 20


class Uploads:
    """The archives of one server."""

    def __init__(self, folder: Path, share_bytes: int) -> None:
        """Touch nothing yet. `share_bytes`: what a tenant may have."""
        self._folder = folder
        self._share = share_bytes
        self._coming: Counter[str] = Counter()
        self._is_swept = False
        self._changing = asyncio.Lock()

    async def has(self, tenant: str, digest: str) -> bool:
        """Report whether a tenant's archive is here; it is kept for another day then."""
        await self._sweep()
        return await asyncio.to_thread(_touched, self._path(tenant, digest))

    async def take(self, tenant: str, digest: str, pieces: AsyncIterator[bytes]) -> None:
        """Take in an archive; an older one of the name is replaced once this one is whole.

        Raises CapacityError, UsageError, and what `pieces` raises.
        """
        if self._coming[tenant] >= _MOST_AT_ONCE:
            raise CapacityError(
                f"upload: {_MOST_AT_ONCE} archives are coming", retry_after_s=5, remedy="try later"
            )
        self._coming[tenant] += 1
        path = self._path(tenant, digest)
        made = path.with_name(f".coming-{new_id()}")
        try:
            await self._sweep()
            await asyncio.to_thread(path.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
            size = await _write(made, pieces, self._share)
            async with self._changing:
                await asyncio.to_thread(self._make_room, path, size)
                await asyncio.to_thread(made.replace, path)
        finally:
            self._coming[tenant] -= 1
            await asyncio.to_thread(made.unlink, missing_ok=True)

    def _make_room(self, path: Path, size: int) -> None:
        """Let the oldest archives of a tenant go until one more of `size` bytes fits."""
        mine = [each for each in _archives(path.parent) if each[2] != path]
        used, count = sum(each[1] for each in mine), len(mine)
        for _, bytes_, old in sorted(mine):
            if used + size <= self._share and count < _MOST_FILES:
                break
            old.unlink(missing_ok=True)
            used, count = used - bytes_, count - 1
        others = [each for each in self._folder.glob("*") if each != path.parent]
        whole = used + sum(each[1] for folder in others for each in _archives(folder))
        if whole + size > self._share * _TENANTS:
            raise CapacityError(
                "upload: archives of all tenants take what the operator gives them",
                retry_after_s=60,
                remedy="try later, or ask the operator for uploads_mb",
            )

    @contextmanager
    def lent(self, tenant: str, digests: Iterable[str]) -> Iterator[Path | None]:
        """Yield a folder with `<hash>/files.tar` of each; None without any. Blocking.

        Raises UsageError for one that is not here.
        """
        wanted = list(digests)
        if not wanted:
            yield None
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lent-", dir=self._folder) as place:
            for digest in wanted:
                folder = Path(place, digest)
                folder.mkdir()
                try:
                    os.link(self._path(tenant, digest), folder / ARCHIVE)
                except FileNotFoundError:
                    raise UsageError(
                        f"filesHash: {digest} was not uploaded, or is gone", remedy="upload it"
                    ) from None
            yield Path(place)

    def _path(self, tenant: str, digest: str) -> Path:
        # SECURITY: never a tenant's own word, which could be a path.
        return self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32] / digest

    async def _sweep(self) -> None:
        """Remove what is old, and, the first time, what a killed server left half done."""
        await asyncio.to_thread(self._swept, not self._is_swept)
        self._is_swept = True

    def _swept(self, is_first: bool) -> None:
        limit = time.time() - KEPT_S
        for folder in self._folder.glob("*"):
            if folder.name.startswith(".lent-"):
                if is_first:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            for path in folder.glob("*"):
                is_left = is_first and path.name.startswith(".coming-")
                with contextlib.suppress(FileNotFoundError):
                    if is_left or path.stat().st_mtime < limit:
                        path.unlink()


def _archives(folder: Path) -> list[tuple[float, int, Path]]:
    found = []
    for path in folder.glob("[0-9a-f]*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    return found


def _touched(path: Path) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


async def _write(path: Path, pieces: AsyncIterator[bytes], most_bytes: int) -> int:
    size, held = 0, bytearray()
    with await asyncio.to_thread(path.open, "xb") as file:
        async for piece in pieces:
            held += piece
            size += len(piece)
            if size > most_bytes:
                raise UsageError(
                    f"upload: more than {most_bytes >> 20} MiB", remedy="leave files out"
                )
            if len(held) >= _PIECE:
                await asyncio.to_thread(file.write, bytes(held))
                held.clear()
        await asyncio.to_thread(file.write, bytes(held))
    return size
