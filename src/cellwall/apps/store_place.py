"""Store place: the server's store, for the server and for commands that read it beside the server.

Light on purpose: `cellwall keys` needs neither an engine nor an HTTP server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings
    from cellwall.store.store import Store


async def open_store(url: str, *, sole: bool = False, has_journal: bool = True) -> Store:
    """Open the store at `url`, as the server (`sole`) or beside one; as `Store.open`."""
    from cellwall.server.audit.chain import sealed_again
    from cellwall.store.store import Store  # brings SQL, which takes a second

    return await Store.open(url, sole=sole, seal=sealed_again, has_journal=has_journal)


def store_url(settings: ServerSettings, directory: Path) -> str | None:
    """Return the URL of the store; None if there is none."""
    if settings.store == "none":
        return None
    if settings.store == "sqlite":
        return f"sqlite:///{directory.absolute() / 'server' / 'cellwall.db'}"
    return settings.store


def store_disk(url: str | None) -> Path | None:
    """Return the directory of a store in a file; None for a remote store, or none."""
    if url is None or not url.startswith("sqlite:///"):
        return None
    return Path(url.removeprefix("sqlite:///")).absolute().parent
