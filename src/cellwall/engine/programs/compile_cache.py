"""Compile cache: compilers' products, kept on disk under a digest of their inputs.

It does not compile (`compile_stage`). Only the engine reads and writes it: a program gets a copy of
its own product in its own sandbox and never sees this directory. A product comes out of a jail and
goes into a jail; the cache does not interpret it. Each tenant has entries of its own, so no tenant
learns from response times what another has compiled.

The invariant: an entry is found whole or not at all. It is written beside its place and renamed,
and begins with the digest of all that follows; an entry that does not match is removed and compiled
anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_DIGEST_BYTES = 32
_MOST_HEADER_BYTES = 16 * 1024 * 1024
"""Maximum bytes of an entry's header. The compiler's output is bounded earlier, and grows when it
is quoted."""
_LOOK_AFTER = 16
"""Number of entries written between two checks of the total size."""


@dataclass(frozen=True, slots=True)
class Product:
    """Product of one compile."""

    files: tuple[tuple[str, bytes], ...]
    """Pairs of path below the build directory and content."""
    stdout: str
    stderr: str
    """Output of the compiler: its warnings are part of the answer."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    tenant: str
    size: int
    used_at: float


def key_of(parts: Mapping[str, object]) -> str:
    """Return the name of the product of `parts`, which are JSON; 64 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class CompileCache:
    """The kept products of one state directory; every method blocks."""

    def __init__(self, directory: Path, most_bytes: int, most_age_s: float) -> None:
        """Touch nothing yet; `most_bytes` of 0 keeps nothing."""
        self._directory = directory
        self._most_bytes = most_bytes
        self._most_age_s = most_age_s
        self._unlooked = _LOOK_AFTER

    def find(self, tenant: str, key: str) -> Product | None:
        """Return the kept product and note its use, or None; a damaged entry is removed."""
        if not self._most_bytes:
            return None
        path = self._path(tenant, key)
        try:
            with path.open("rb") as file:
                is_old = time.time() - os.fstat(file.fileno()).st_mtime > self._most_age_s
                data = b"" if is_old else file.read(self._most_bytes + 1)
        except OSError:
            return None
        product = _unpacked(data)
        if product is None:
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return product

    def keep(self, tenant: str, key: str, product: Product) -> None:
        """Keep the product if it fits; a cache that cannot write to the disk is only slow."""
        data = _packed(product)
        if len(data) > self._most_bytes // 4:
            return
        path = self._path(tenant, key)
        draft = path.with_name(f".{key}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (path.parent.parent, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            with draft.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
            draft.replace(path)
        except OSError:
            _remove(draft)
            return
        self._unlooked += 1
        if self._unlooked >= _LOOK_AFTER:
            self.trim()

    def trim(self) -> int:
        """Remove entries that are too old; then the largest tenant's oldest until the rest fits."""
        self._unlooked = 0
        oldest = time.time() - self._most_age_s
        removed = 0
        kept: dict[str, list[_Entry]] = {}
        for entry in sorted(self._entries(), key=lambda each: -each.used_at):
            if entry.used_at < oldest:
                removed += _remove(entry.path)
            else:
                kept.setdefault(entry.tenant, []).append(entry)
        sizes = {tenant: sum(e.size for e in entries) for tenant, entries in kept.items()}
        while sum(sizes.values()) > self._most_bytes:
            largest = max(sizes, key=lambda tenant: sizes[tenant])
            entry = kept[largest].pop()
            sizes[largest] -= entry.size
            removed += _remove(entry.path)
        return removed

    def _path(self, tenant: str, key: str) -> Path:
        # A tenant's name is the operator's text; its digest is a safe directory name.
        folder = hashlib.sha256(tenant.encode()).hexdigest()[:32]
        return self._directory / folder / key[:2] / key

    def _entries(self) -> Iterator[_Entry]:
        for path in self._directory.glob("*/*/*"):
            with contextlib.suppress(OSError):
                found = path.stat()
                yield _Entry(path, path.parts[-3], found.st_size, found.st_mtime)


def _packed(product: Product) -> bytes:
    """Return the digest, the length of the header, the header and the files' bytes, joined."""
    header = json.dumps(
        {
            "files": [[name, len(data)] for name, data in product.files],
            "stdout": product.stdout,
            "stderr": product.stderr,
        }
    ).encode()
    rest = b"".join([len(header).to_bytes(4, "big"), header, *(data for _, data in product.files)])
    return hashlib.sha256(rest).digest() + rest


def _unpacked(data: bytes) -> Product | None:
    rest = memoryview(data)[_DIGEST_BYTES:]
    if not rest or hashlib.sha256(rest).digest() != data[:_DIGEST_BYTES]:
        return None
    start = 4 + int.from_bytes(rest[:4], "big")
    if start > _MOST_HEADER_BYTES:
        return None
    header = json.loads(bytes(rest[4:start]))
    files = []
    for name, size in header["files"]:
        files.append((name, bytes(rest[start : start + size])))
        start += size
    return Product(tuple(files), header["stdout"], header["stderr"])


def _remove(path: Path) -> int:
    try:
        path.unlink()
    except OSError:
        return 0
    return 1
