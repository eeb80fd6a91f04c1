"""Where a server's store is, for the server and for the commands that read it beside the server.

Light on purpose: `cellwall keys` needs neither an engine nor an HTTP server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.server.settings import ServerSettings


def store_url(settings: ServerSettings, directory: Path) -> str | None:
    """Return where the store is; None for none."""
    if settings.store == "none":
        return None
    if settings.store == "sqlite":
        return f"sqlite:///{directory.absolute() / 'server' / 'cellwall.db'}"
    return settings.store
