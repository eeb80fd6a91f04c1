"""Small packages that pip, uv and npm install: wheels, source distributions, tarballs of npm."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Made:
    """One file of a package."""

    name: str
    version: str
    file_name: str
    content: bytes
    metadata: bytes = b""
    manifest: dict[str, object] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def sha512(self) -> str:
        return hashlib.sha512(self.content).hexdigest()

    @property
    def sha1(self) -> str:
        return hashlib.sha1(self.content, usedforsecurity=False).hexdigest()


def wheel(
    name: str,
    version: str = "1.0",
    *,
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    padding: bytes = b"",
    body: str = "",
) -> Made:
    """Return a wheel with one module that says its version."""
    module = name.replace("-", "_").replace(".", "_")
    stem = f"{module}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    metadata = ("\n".join(lines) + "\n").encode()
    files = {
        f"{module}.py": f"version = {version!r}\n{body}".encode(),
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: kit\nRoot-Is-Purelib: true\nTag: {tag}\n"
        ).encode(),
    }
    if padding:
        files[f"{module}_data.bin"] = padding
    record = "".join(
        f"{path},sha256={_urlsafe(content)},{len(content)}\n" for path, content in files.items()
    )
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return Made(name, version, f"{stem}-{tag}.whl", buffer.getvalue(), metadata)


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def sdist(name: str, version: str = "1.0") -> Made:
    """Return a source distribution whose build needs no other package."""
    module = name.replace("-", "_")
    stem = f"{module}-{version}"
    backend = (
        "import pathlib\n"
        "def build_wheel(place, config_settings=None, metadata_directory=None):\n"
        f"    wheel = {f'{stem}-py3-none-any.whl'!r}\n"
        "    pathlib.Path(place, wheel).write_bytes(pathlib.Path('built').read_bytes())\n"
        "    return wheel\n"
    )
    pyproject = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        "pyproject.toml": pyproject.encode(),
        "backend.py": backend.encode(),
        "built": wheel(name, version).content,
    }
    return Made(name, version, f"{stem}.tar.gz", _tar(stem, files))


def tarball(name: str, version: str = "1.0.0", *, needs: dict[str, str] | None = None) -> Made:
    """Return a tarball of npm with one module that says its version."""
    manifest: dict[str, object] = {"name": name, "version": version, "main": "index.js"}
    if needs:
        manifest["dependencies"] = needs
    files = {
        "package.json": json.dumps(manifest).encode(),
        "index.js": f"module.exports = {version!r};\n".encode(),
    }
    base = name.rpartition("/")[2]
    return Made(name, version, f"{base}-{version}.tgz", _tar("package", files), b"", manifest)


def _tar(folder: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
