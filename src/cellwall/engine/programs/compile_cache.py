"""Compile cache: compilers' products, kept on disk under a digest of their inputs.

It does not compile (`compile_stage`). Only the engine reads and writes it: a program gets a copy of
its own product in its own sandbox and never sees this directory. A product comes out of a jail and
goes into a jail; the cache does not interpret it. Each tenant has entries of its own, so no tenant
learns from response times what another has compiled.

The invariant: an entry is found whole or not at all. It is written beside its place and renamed,
and begins with the digest of all that follows; an entry that does not match is removed and compiled
anew. What was kept or found lately is in memory, too, and counts as long as its entry is on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cellwall.runtimes.channel.sealed_files import LEAST_BYTES, Content, SealedFile

_DIGEST_BYTES = 32
_MOST_HEADER_BYTES = 16 * 1024 * 1024
"""Maximum bytes of an entry's header. The compiler's output is bounded earlier, and grows when it
is quoted."""
_LOOK_AFTER = 16
"""Number of entries written between two checks of the total size."""
_MOST_IN_MEMORY_BYTES = 64 * 1024 * 1024
_MOST_IN_MEMORY = 128
"""Bound on the descriptors of large files."""


@dataclass(frozen=True, slots=True)
class Product:
    """Product of one compile."""

    files: tuple[tuple[str, Content], ...]
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
        self._latest = _Latest(min(_MOST_IN_MEMORY_BYTES, most_bytes // 4))

    def find(self, tenant: str, key: str) -> Product | None:
        """Return the kept product and note its use, or None; a damaged entry is removed."""
        if not self._most_bytes:
            return None
        path = self._path(tenant, key)
        try:
            with path.open("rb") as file:
                is_old = time.time() - os.fstat(file.fileno()).st_mtime > self._most_age_s
                product = None if is_old else self._latest.find(path)
                if product is None and not is_old:
                    product = _unpacked(file.read(self._most_bytes + 1))
        except OSError:
            self._latest.forget(path)
            return None
        if product is None:
            self._latest.forget(path)
            _remove(path)
            return None
        self._latest.keep(path, product)
        with contextlib.suppress(OSError):
            os.utime(path)
        return product

    def keep(self, tenant: str, key: str, product: Product) -> Product:
        """Keep the product if it fits, and return it in the form in which it is used best.

        A cache that cannot write to the disk is only slow.
        """
        data = _packed(product)
        if len(data) > self._most_bytes // 4:
            return product
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
            return product
        product = replace(product, files=tuple((n, _content(data)) for n, data in product.files))
        self._latest.keep(path, product)
        self._unlooked += 1
        if self._unlooked >= _LOOK_AFTER:
            self.trim()
        return product

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


class _Latest:
    """The products that were kept or read lately, in memory. Safe in every thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._products: dict[Path, Product] = {}
        """The latest one is the last."""
        self._lock = threading.Lock()

    def find(self, path: Path) -> Product | None:
        with self._lock:
            return self._products.get(path)

    def keep(self, path: Path, product: Product) -> None:
        with self._lock:
            self._products.pop(path, None)
            self._products[path] = product
            sizes = [(each, _size(kept)) for each, kept in self._products.items()]
            left = sum(size for _, size in sizes)
            for each, size in sizes:
                if left <= self._most_bytes and len(self._products) <= _MOST_IN_MEMORY:
                    break
                del self._products[each]
                left -= size

    def forget(self, path: Path) -> None:
        with self._lock:
            self._products.pop(path, None)


def _size(product: Product) -> int:
    contents = sum(len(content) for _, content in product.files)
    return contents + len(product.stdout) + len(product.stderr)


def _packed(product: Product) -> bytes:
    """Return the digest, the length of the header, the header and the files' bytes, joined."""
    header = json.dumps(
        {
            "files": [[name, len(content)] for name, content in product.files],
            "stdout": product.stdout,
            "stderr": product.stderr,
        }
    ).encode()
    contents = [bytes(content) for _, content in product.files]
    rest = b"".join([len(header).to_bytes(4, "big"), header, *contents])
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
        files.append((name, _content(rest[start : start + size])))
        start += size
    return Product(tuple(files), header["stdout"], header["stderr"])


def _content(data: Content | memoryview) -> Content:
    """Return the content of one file; as a file if it is large, since guests copy that faster."""
    if isinstance(data, SealedFile):
        return data
    if len(data) >= LEAST_BYTES:
        with contextlib.suppress(OSError):  # no memory for it, or no descriptor
            return SealedFile(data)
    return bytes(data)


def _remove(path: Path) -> int:
    try:
        path.unlink()
    except OSError:
        return 0
    return 1
