"""Names of the templates that tenants have built, and the image that each of them means.

Used by the server's door of templates, and by the store of images, which does not evict one that is
meant here. It builds nothing (`builder`). Blocking. The invariants: a tenant's names are in a file
of its own, so that no word of another tenant leads there; a file is whole at every moment.

    own-templates/<digest of the tenant>.json     its names
    own-templates/lock                            held while a file is changed
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from cellwall.model.errors import NotFound, UsageError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """One name of a tenant's."""

    name: str
    """With its tag: `task:1`."""
    image: str
    """Id of the image that it means now."""
    built_at: float
    """In seconds since the epoch."""


def whole_name(name: str) -> str:
    """Return a template's name with its tag, by default `latest`. Raises `UsageError`."""
    bare, colon, tag = name.partition(":")
    if not _NAME.fullmatch(bare) or (colon and not _TAG.fullmatch(tag)):
        raise UsageError(
            f"template: {name[:80]!r} is no name",
            remedy="up to 63 of a-z, 0-9, `.`, `_` and `-`, with a tag as in `task:1`",
        )
    return f"{bare}:{tag or 'latest'}"


class OwnTemplates:
    """The names of all tenants of one state directory."""

    def __init__(self, directory: Path) -> None:
        """Touch nothing yet."""
        self._folder = directory / "own-templates"

    def all(self, tenant: str) -> list[OwnTemplate]:
        """Return a tenant's templates, by name."""
        return sorted(_read(self._path(tenant)), key=lambda each: each.name)

    def find(self, tenant: str, name: str) -> OwnTemplate | None:
        """Return the tenant's template of that whole name, or None."""
        return next((each for each in _read(self._path(tenant)) if each.name == name), None)

    def get(self, tenant: str, name: str) -> OwnTemplate:
        """Return the tenant's template of that whole name. Raises NotFound."""
        found = self.find(tenant, name)
        if found is None:
            raise NotFound(
                f"template {name[:120]!r}: there is none", remedy="GET /templates lists yours"
            )
        return found

    def put(self, tenant: str, names: Iterable[str], image: str) -> None:
        """Have names of a tenant's mean an image from now on, all at once."""
        now = time.time()
        made = {name: OwnTemplate(name, image, now) for name in names}
        with self._changing():
            kept = [each for each in _read(self._path(tenant)) if each.name not in made]
            self._write(tenant, [*kept, *made.values()])

    def remove(self, tenant: str, name: str) -> None:
        """Forget a tenant's name; the image stays."""
        with self._changing():
            kept = [each for each in _read(self._path(tenant)) if each.name != name]
            self._write(tenant, kept)

    def images(self) -> Counter[str]:
        """Return the images that names of all tenants mean, and how many mean each."""
        found = self._folder.glob("*.json")
        return Counter(each.image for path in found for each in _read(path))

    def _path(self, tenant: str) -> Path:
        # SECURITY: never a tenant's own word, which could be a path.
        return self._folder / f"{hashlib.sha256(tenant.encode()).hexdigest()}.json"

    def _write(self, tenant: str, kept: list[OwnTemplate]) -> None:
        path = self._path(tenant)
        made = path.with_name(f".{path.name}.{os.getpid()}")
        with made.open("w", encoding="utf-8") as file:
            json.dump({"tenant": tenant, "templates": [asdict(each) for each in kept]}, file)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read(path: Path) -> list[OwnTemplate]:
    try:
        said = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    return [OwnTemplate(**each) for each in said["templates"]]
