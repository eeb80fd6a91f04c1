"""Where cellwall keeps what outlives its processes, templates among it."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir() -> Path:
    """Return the directory of cellwall's persistent state; nothing is created."""
    chosen = os.environ.get("CELLWALL_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cellwall")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "cellwall"
