"""The name of a node, which belongs to its state directory and survives restarts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cellwall.model.ids import check_node, new_node

if TYPE_CHECKING:
    from pathlib import Path


def name_of(state_dir: Path) -> str:
    """Return the node's name, drawn at its first start."""
    path = state_dir / "server" / "node"
    try:
        return check_node(path.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_suffix(".new")
        fresh.write_text(new_node() + "\n", encoding="ascii")
        os.replace(fresh, path)
        return name_of(state_dir)


def forget(state_dir: Path) -> None:
    """Use the name up: the next start draws another."""
    (state_dir / "server" / "node").unlink(missing_ok=True)
