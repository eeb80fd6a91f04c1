"""Finished steps of builds: which image a step of a key made, in `steps.json` beside the images."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.engine.images.image_store import ImageStore, StoredImage

_MOST_KEPT = 10_000


class FinishedSteps:
    """The record; a step whose image is gone is not in it."""

    def __init__(self, path: Path, store: ImageStore) -> None:
        self._path, self._store = path, store

    def _all(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def find(self, key: str) -> StoredImage | None:
        """Return the image; None: the step has to be done."""
        digest = self._all().get(key)
        return None if digest is None else self._store.get(digest)

    def keep(self, key: str, stored: StoredImage) -> None:
        """Note what a step made."""
        found = {**self._all(), key: stored.digest}
        kept = dict(list(found.items())[-_MOST_KEPT:])
        made = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        made.write_text(json.dumps(kept), encoding="utf-8")
        made.replace(self._path)
