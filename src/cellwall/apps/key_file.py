"""The server's own key, made at its first start: only its digest is kept.

Not the keys an operator brings (`settings_loader`). Called by `serve`. The invariant: the key in
clear exists in the line that is printed once and nowhere else; the file has mode 0600.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from cellwall.model.errors import UsageError
from cellwall.server.keys import KeyRecord, digest_of, new_key


def first_key(state_dir: Path, *, afresh: bool = False) -> tuple[KeyRecord, str | None]:
    """Return the key's record, and the key itself if it was made now."""
    path = state_dir / "server" / "key.json"
    if not afresh and path.exists():
        return _read(path), None
    key = new_key()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump({"sha256": digest_of(key), "made_at": int(time.time())}, file)
    draft.replace(path)
    return KeyRecord(digest_of(key), scope="admin"), key


def _read(path: Path) -> KeyRecord:
    try:
        digest = json.loads(path.read_text(encoding="utf-8"))["sha256"]
        return KeyRecord(str(digest), scope="admin")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"key: {path} cannot be read: {error}", remedy="start once with --new-key"
        ) from None
