"""What a caller names as an image: an archive, an image of a Docker daemon, or one of a registry.

Pure. The grammar of names is that of Docker and of the OCI distribution specification 1.1
(`spec.md`, "Pulling manifests"). A name never becomes an option, a path or part of a URL unchecked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cellwall.images.image import DIGEST
from cellwall.model.errors import UsageError

_DOCKER = "docker://"
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.?)+(?::[0-9]{1,5})?")
_REPOSITORY = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_MOST = 255


@dataclass(frozen=True, slots=True)
class Archive:
    """An image in a file or directory of this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class InDaemon:
    """An image of the Docker daemon of this machine."""

    name: str


@dataclass(frozen=True, slots=True)
class InRegistry:
    """An image of a registry."""

    registry: str
    """Host, and maybe a port; empty: the one that is asked for names without one."""
    repository: str
    tag: str = "latest"
    digest: str = ""
    """If it is given, the tag is not looked at."""

    def __str__(self) -> str:
        """Write it as a caller does."""
        host = f"{self.registry}/" if self.registry else ""
        end = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{host}{self.repository}{end}"


@dataclass(frozen=True, slots=True)
class ById:
    """An image that is here already, by the digest of its configuration."""

    digest: str


Reference = Archive | InDaemon | InRegistry | ById


def parse(text: object) -> Reference:
    """Return what `text` names. Raises `UsageError`.

    A path begins with `/`, `./` or `../`; `sha256:` and 64 digits is the id of an
    image that is here; anything else without a scheme is a name of a registry.
    """
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError("image: it is no text", remedy="name one, such as `./task.tar`")
    if text.startswith(("/", "./", "../")):
        return Archive(Path(text))
    if DIGEST.fullmatch(text):
        return ById(text)
    if text.startswith(_DOCKER):
        named = _named(text.removeprefix(_DOCKER), text)
        return InDaemon(str(named))
    if "://" in text:
        raise _wrong(text, "its scheme is not `docker://`")
    return _named(text, text)


def _named(name: str, text: str) -> InRegistry:
    if len(name) > _MOST:
        raise _wrong(text, f"it has more than {_MOST} characters")
    rest, at, digest = name.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise _wrong(text, "what follows `@` is no digest by sha256")
    first, slash, others = rest.partition("/")
    registry = ""
    if slash and ("." in first or ":" in first or first == "localhost"):
        if not _HOST.fullmatch(first):
            raise _wrong(text, f"{first[:60]!r} is no host")
        registry, rest = first, others
    repository, colon, tag = rest.partition(":")
    if not _REPOSITORY.fullmatch(repository):
        raise _wrong(text, "a repository has lower-case letters, digits and `.`, `_`, `-`, `/`")
    if colon and not _TAG.fullmatch(tag):
        raise _wrong(text, f"{tag[:60]!r} is no tag")
    return InRegistry(registry, repository, tag or "latest", digest)


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(
        f"image: {text[:120]!r}: {why}",
        remedy="name it like `python:3.12-slim`, `./task.tar` or `docker://name`",
    )
