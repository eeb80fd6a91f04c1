"""An image as its documents describe it: configuration and layers. Values, and their checks.

The formats are those of the OCI image specification 1.1 (`config.md`, `manifest.md`), which
Docker's schema 2 shares. Documents come from strangers: everything is checked for type and size,
and what is not used is not read.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cellwall.model.errors import CellwallError, UsageError

Compression = Literal["gzip", "zstd", "none"]
MOST_DOCUMENT_BYTES = 4 << 20
"""Largest manifest, index or configuration that is read, in bytes; registries have the same bound
(distribution specification, `spec.md`, "Pushing Manifests")."""
MOST_LAYERS = 512
_MAGIC: tuple[tuple[bytes, Compression], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
_MOST_VARIABLES = 1000
_MOST_TEXT = 32_768
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageInvalid(UsageError):
    """An image's documents or layers are not what the specification says."""


class PullFailed(CellwallError):
    """A registry did not give an image."""

    code = "image_pull"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer."""

    diff_id: str
    """Digest of the uncompressed tar, `sha256:` and 64 hexadecimal digits."""
    compression: Compression
    path: Path
    """Where its bytes lie on this machine."""
    offset: int = 0
    """Where they begin in that file, which may be the archive itself."""
    size: int = 0
    """Number of bytes as they lie there."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image's configuration says that a sandbox uses."""

    digest: str
    """Digest of the configuration, which is the image's id."""
    diff_ids: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    user: str = ""
    """A name or number, and after a colon a group; empty: root."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free words about the image; nothing here goes by them."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image whose layers are on this machine."""

    config: ImageConfig
    layers: tuple[Layer, ...]


def machine_architecture() -> str:
    """Return this machine's architecture as image documents call it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def is_for_this_machine(platform: object) -> bool:
    """Report whether a `platform` of an index names this machine's system and architecture."""
    if not isinstance(platform, dict):
        return False
    return (platform.get("os"), platform.get("architecture")) == ("linux", machine_architecture())


def compression_of(first: bytes) -> Compression:
    """Return how a layer is compressed, by its first four bytes or more."""
    return next((name for magic, name in _MAGIC if first.startswith(magic)), "none")


def document(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object; raise `ImageInvalid`, which begins with `what`."""
    if len(data) > MOST_DOCUMENT_BYTES:
        raise ImageInvalid(f"{what}: it has more than {MOST_DOCUMENT_BYTES} bytes")
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ImageInvalid(f"{what}: it is no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise ImageInvalid(f"{what}: it is no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; two readers could take a key that comes twice for different things."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice in an object")
    return found


def is_index(manifest: Mapping[str, Any], what: str) -> bool:
    """Report whether a document is an index. Raises `ImageInvalid` for one that is both.

    Two readers could take it for different images (CVE-2021-41190).
    """
    if "manifests" in manifest and ("layers" in manifest or "config" in manifest):
        raise ImageInvalid(f"{what}: it is an index and a manifest in one")
    return "manifests" in manifest


def digest_of(data: bytes) -> str:
    """Return the digest of some bytes, as documents write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def checked_digest(value: object, what: str) -> str:
    """Return a digest; raise `ImageInvalid` unless it is one by SHA-256."""
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise ImageInvalid(f"{what}: {str(value)[:80]!r} is no digest by sha256")
    return value


def read_config(data: bytes) -> ImageConfig:
    """Return the configuration that these bytes are; raise `ImageInvalid`."""
    what = "image configuration"
    found = document(data, what)
    spoken, system = found.get("architecture"), found.get("os")
    if system != "linux" or spoken != machine_architecture():
        raise ImageInvalid(
            f"image: it is for {str(system)[:20]}/{str(spoken)[:20]}, and this machine is "
            f"linux/{machine_architecture()}",
            remedy="use an image for this machine",
        )
    root = _member(found, "rootfs", dict, what)
    diff_ids = _member(root, "diff_ids", list, what)
    if not 0 < len(diff_ids) <= MOST_LAYERS:
        raise ImageInvalid(f"{what}: it has {len(diff_ids)} layers, not 1 to {MOST_LAYERS}")
    own = found.get("config") or {}
    if not isinstance(own, dict):
        raise ImageInvalid(f"{what}: its `config` is no object")
    return ImageConfig(
        digest_of(data),
        tuple(checked_digest(each, f"{what}, layer") for each in diff_ids),
        _environment(own.get("Env"), what),
        _directory(own.get("WorkingDir"), what),
        _text(own.get("User") or "", f"{what}, User"),
        _words(own.get("Entrypoint"), f"{what}, Entrypoint"),
        _words(own.get("Cmd"), f"{what}, Cmd"),
        _labels(own.get("Labels")),
    )


def _member(data: Mapping[str, Any], name: str, kind: type, what: str) -> Any:  # noqa: ANN401 - JSON
    found = data.get(name)
    if not isinstance(found, kind):
        raise ImageInvalid(f"{what}: it has no proper {name!r}")
    return found


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT or "\0" in value:
        raise ImageInvalid(f"{what}: it is no text of at most {_MOST_TEXT} characters")
    return value


def _words(value: object, what: str) -> tuple[str, ...]:
    words = [] if value is None else value
    if not isinstance(words, Sequence) or isinstance(words, str) or len(words) > _MOST_VARIABLES:
        raise ImageInvalid(f"{what}: it is no list")
    return tuple(_text(word, what) for word in words)


def _environment(value: object, what: str) -> dict[str, str]:
    found = {}
    for line in _words(value, f"{what}, Env"):
        name, equals, text = line.partition("=")
        if not name or not equals:
            raise ImageInvalid(f"{what}, Env: {line[:80]!r} is no NAME=VALUE")
        found[name] = text
    return found


def _labels(value: object) -> dict[str, str]:
    """Return the labels that are short texts: others of them matter to no one here."""
    found = value if isinstance(value, dict) else {}
    kept = [
        (name, text)
        for name, text in found.items()
        if isinstance(text, str) and len(name) + len(text) <= _MOST_TEXT and "\0" not in name + text
    ]
    return dict(kept[:_MOST_VARIABLES])


def _directory(value: object, what: str) -> str:
    path = _text(value or "/", f"{what}, WorkingDir")
    if not path.startswith("/") or ".." in path.split("/"):
        raise ImageInvalid(f"{what}, WorkingDir: {path[:80]!r} is no absolute path without `..`")
    return path
