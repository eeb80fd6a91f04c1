"""Images in archives: an OCI image layout as a tar or a directory, and what `docker save` writes.

OCI image specification 1.1, `image-layout.md`; Docker's `manifest.json` (moby, image/spec/v1.2). An
archive is read where it lies: a layer is a part of the file, found by its offset, and nothing is
extracted here. The invariant: a document is used only if its bytes have the digest by which another
one names it.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cellwall.images.image import (
    MOST_DOCUMENT_BYTES,
    MOST_LAYERS,
    Compression,
    Image,
    ImageInvalid,
    Layer,
    checked_digest,
    compression_of,
    digest_of,
    document,
    is_for_this_machine,
    is_index,
    machine_architecture,
    read_config,
)
from cellwall.model.errors import UsageError

_MOST_MEMBERS = 20_000
_MOST_HEADER = 1 << 20
"""Most bytes of a member's long name or attributes, which tarfile reads into memory."""
_MOST_LINKS = 8
_MOST_INDEXES = 4
"""Most indexes one below the other: Docker writes two."""


@dataclass(frozen=True, slots=True)
class Place:
    """Part of a file."""

    path: Path
    offset: int
    size: int

    def read(self, what: str) -> bytes:
        """Return it, if it is a small document."""
        if self.size > MOST_DOCUMENT_BYTES:
            raise ImageInvalid(f"{what}: it has more than {MOST_DOCUMENT_BYTES} bytes")
        return self._first(self.size)

    def compression(self) -> Compression:
        """Return how it is compressed, by its first bytes."""
        return compression_of(self._first(4))

    def _first(self, size: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(min(size, self.size))


class _Files(Protocol):
    """The files of an archive, by their names."""

    def find(self, name: str) -> Place | None:
        """Return where a file lies; None if there is none of that name."""


class _Member(tarfile.TarInfo):
    """A member of a tar; names and attributes of unbounded length are not read."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        long = (*tarfile.GNU_TYPES, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if self.type in long and self.type != tarfile.GNUTYPE_SPARSE and self.size > _MOST_HEADER:
            raise tarfile.HeaderError("a header is too long")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc] # typeshed lacks it
        return found


class _Tar:
    """The files of a tar; links in it are followed within it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, tarfile.TarInfo] = {}
        try:
            with tarfile.open(path, "r:", tarinfo=_Member) as tar:
                for member in tar:
                    if len(self._members) >= _MOST_MEMBERS:
                        raise ImageInvalid(f"image {path.name}: more than {_MOST_MEMBERS} members")
                    self._members[os.path.normpath(member.name)] = member
        except (tarfile.TarError, ValueError, UnicodeError) as error:
            raise ImageInvalid(
                f"image {path.name}: it is no tar: {str(error)[:200]}",
                remedy="make it with `docker save` or as an OCI image layout, uncompressed",
            ) from None

    def find(self, name: str) -> Place | None:
        for _ in range(_MOST_LINKS):
            member = self._members.get(os.path.normpath(name))
            if member is None or member.isdir():
                return None
            if not (member.issym() or member.islnk()):
                break
            folder = os.path.dirname(member.name) if member.issym() else ""
            name = os.path.join(folder, member.linkname)
        else:
            return None
        if not member.isreg() or member.issparse():
            return None
        return Place(self._path, member.offset_data, member.size)


class _Directory:
    """The files below a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def find(self, name: str) -> Place | None:
        path = (self._path / name).resolve()
        if not path.is_relative_to(self._path):  # by `..`, or by a link
            return None
        return Place(path, 0, path.stat().st_size) if path.is_file() else None


def read_archive(path: Path) -> Image:
    """Return the image in an archive. Raises `UsageError`, `ImageInvalid`."""
    with _readable(path):
        if not (path.is_dir() or stat.S_ISREG(path.stat().st_mode)):
            raise UsageError(
                f"image: {path} is neither a file nor a directory", remedy="name an archive"
            )
        files: _Files = _Directory(path) if path.is_dir() else _Tar(path)
        if files.find("oci-layout") is not None and files.find("index.json") is not None:
            return _of_layout(files, path.name)
        if files.find("manifest.json") is not None:
            return _of_docker(files, path.name)
    raise ImageInvalid(
        f"image {path.name}: it has neither index.json nor manifest.json",
        remedy="make it with `docker save` or as an OCI image layout",
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"image: read {path}: {error.strerror}", remedy="name an archive that can be read"
        ) from error


def _of_layout(files: _Files, name: str) -> Image:
    found = _found(files, "index.json", name)
    manifest = document(found.read(f"image {name}, index.json"), f"image {name}, index.json")
    for _ in range(_MOST_INDEXES):
        if not is_index(manifest, f"image {name}"):
            break
        manifest = _blob(files, _chosen(manifest, name), name)
    else:
        raise ImageInvalid(f"image {name}: its indexes lie too deep")
    config = _described(manifest.get("config"), name)
    data = _bytes(files, config, name)
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) > MOST_LAYERS:
        raise ImageInvalid(f"image {name}: its manifest has no proper layers")
    places = [_found(files, _path(_described(each, name)), name) for each in layers]
    return _image(data, places, name)


def _chosen(index: Mapping[str, Any], name: str) -> str:
    """Return the digest of this machine's manifest, or index, of an index."""
    listed = index["manifests"]
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ImageInvalid(f"image {name}: its index is no list of objects")
    fitting = [
        each
        for each in listed
        if each.get("platform") is None or is_for_this_machine(each["platform"])
    ]
    if len({each.get("digest") for each in fitting}) != 1:
        raise ImageInvalid(
            f"image {name}: {len(fitting)} of its {len(listed)} images are for "
            f"linux/{machine_architecture()}, not one",
            remedy="save one image in an archive",
        )
    return _described(fitting[0], name)


def _described(value: object, name: str) -> str:
    if not isinstance(value, dict):
        raise ImageInvalid(f"image {name}: a descriptor is missing")
    return checked_digest(value.get("digest"), f"image {name}")


def _path(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _found(files: _Files, path: str, name: str) -> Place:
    place = files.find(path)
    if place is None:
        raise ImageInvalid(f"image {name}: it has no file {path[:120]!r}")
    return place


def _bytes(files: _Files, digest: str, name: str) -> bytes:
    data = _found(files, _path(digest), name).read(f"image {name}, {digest}")
    if digest_of(data) != digest:
        raise ImageInvalid(f"image {name}: what it has as {digest} has another digest")
    return data


def _blob(files: _Files, digest: str, name: str) -> dict[str, Any]:
    return document(_bytes(files, digest, name), f"image {name}, {digest}")


def _of_docker(files: _Files, name: str) -> Image:
    data = _found(files, "manifest.json", name).read(f"image {name}, manifest.json")
    # A list at the top: wrapped, so that the bounds of documents hold for it.
    listed = document(b'{"images": ' + data + b"}", f"image {name}, manifest.json")["images"]
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        count = len(listed) if isinstance(listed, list) else 0
        raise ImageInvalid(
            f"image {name}: the archive has {count} images", remedy="save one image in an archive"
        )
    config, layers = listed[0].get("Config"), listed[0].get("Layers")
    if not isinstance(config, str) or not isinstance(layers, list) or len(layers) > MOST_LAYERS:
        raise ImageInvalid(f"image {name}: its manifest.json has no proper Config and Layers")
    places = [_found(files, str(each), name) for each in layers]
    return _image(_found(files, config, name).read(f"image {name}, {config[:80]}"), places, name)


def _image(config_data: bytes, places: list[Place], name: str) -> Image:
    config = read_config(config_data)
    if len(places) != len(config.diff_ids):
        raise ImageInvalid(
            f"image {name}: {len(places)} layers, and its configuration names "
            f"{len(config.diff_ids)}"
        )
    layers = [
        Layer(diff_id, place.compression(), place.path, place.offset, place.size)
        for diff_id, place in zip(config.diff_ids, places, strict=True)
    ]
    return Image(config, tuple(layers))
