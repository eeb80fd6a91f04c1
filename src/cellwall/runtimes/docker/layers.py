"""Image layers: write an image as tar files, a configuration and one archive for `docker load`.

No registry, no Dockerfile, nothing is run. The invariant: the same files give the same bytes
(sorted, owned by root, no time but a module's), so a layer's digest identifies its content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EPOCH = 0
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """One finished layer."""

    path: Path
    digest: str
    """SHA-256 of the uncompressed tar, hexadecimal: its diff id."""


class LayerWriter:
    """Writer of one tar from host files and generated entries; `close` returns its digest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `close`
        self._folders: set[str] = set()

    def directory(self, path: str, mode: int = 0o755) -> None:
        """Add a directory and its parents."""
        name = path.strip("/")
        if not name or name in self._folders:
            return
        self.directory(os.path.dirname(name))
        self._folders.add(name)
        entry = self._entry(name, tarfile.DIRTYPE, mode)
        self._tar.addfile(entry)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Add a generated file."""
        self.directory(os.path.dirname(path))
        entry = self._entry(path.strip("/"), tarfile.REGTYPE, mode)
        entry.size = len(content)
        self._tar.addfile(entry, io.BytesIO(content))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self.directory(os.path.dirname(path))
        entry = self._entry(path.strip("/"), tarfile.SYMTYPE, 0o777)
        entry.linkname = target
        self._tar.addfile(entry)

    def copy(self, source: str, target: str) -> None:
        """Add one host file as `target`; sockets, devices and secrets are skipped.

        SECURITY: set-uid bits are dropped, and a file that not all users may read is left out.
        """
        status = os.lstat(source)
        if stat.S_ISLNK(status.st_mode):
            self.link(target, os.readlink(source))
        elif stat.S_ISDIR(status.st_mode):
            self.directory(target, status.st_mode & 0o755)
        elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004:
            self.directory(os.path.dirname(target))
            entry = self._entry(target.strip("/"), tarfile.REGTYPE, status.st_mode & 0o755)
            with open(source, "rb") as stream:
                entry.size = os.fstat(stream.fileno()).st_size
                if source.endswith(".py"):
                    # otherwise the bytecode compiled from it is stale
                    entry.mtime = int(status.st_mtime)
                self._tar.addfile(entry, stream)

    def tree(self, source: str, target: str) -> None:
        """Add a whole host directory as `target`."""
        self.directory(target)
        for folder, names, files in os.walk(source):
            names.sort()
            inside = target + folder[len(source) :]
            for name in sorted((*names, *files)):
                if name in names and not os.path.islink(f"{folder}/{name}"):
                    self.directory(f"{inside}/{name}")
                else:
                    self.copy(f"{folder}/{name}", f"{inside}/{name}")

    def _entry(self, name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.mtime = kind, mode, _EPOCH
        return entry

    def close(self) -> Layer:
        """Finish the layer."""
        self._tar.close()
        digest = hashlib.sha256()
        with self._path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return Layer(self._path, digest.hexdigest())


def configuration(
    layers: Iterable[Layer], labels: Mapping[str, str], machine: str
) -> dict[str, Any]:
    """Return an image's configuration (OCI image specification)."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return {
        "architecture": architecture,
        "os": "linux",
        "config": {"Labels": dict(labels), "Env": [], "User": "1000:1000"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each.digest}" for each in layers]},
    }


def archive(target: Path, layers: list[Layer], config: Mapping[str, Any], tag: str) -> None:
    """Write the archive that `docker load` reads."""
    text = json.dumps(config, sort_keys=True).encode()
    name = hashlib.sha256(text).hexdigest() + ".json"
    manifest = [
        {"Config": name, "RepoTags": [tag], "Layers": [f"{each.digest}.tar" for each in layers]}
    ]
    with tarfile.open(target, "w") as tar:
        for title, content in ((name, text), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(title)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for layer in layers:
            tar.add(layer.path, f"{layer.digest}.tar")
