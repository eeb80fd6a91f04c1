"""Copies of the host's small trees: what everybody may read, and links as links."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from cellwall.linux import host_copies


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_what_others_may_not_read_is_not_copied(tmp_path: Path) -> None:
    """Whoever makes the copies may read all of it, as root may: modes decide, not trying."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "open").mkdir(parents=True)
    (source / "shut").mkdir(mode=0o750)
    for name, mode in (("open/public", 0o644), ("open/private", 0o640), ("shut/public", 0o644)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    (source / "link").symlink_to("open/private")
    (source / "folder-link").symlink_to("open")
    host_copies.copy(str(source), str(target))
    assert _names(target) == {"open", "open/public", "link", "folder-link"}
    assert os.readlink(target / "link") == "open/private"
    assert (target / "folder-link").is_symlink()
    assert (target / "open/public").read_text() == "open/public"


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(source / "socket"))
    (source / "program").write_text("#!/bin/sh\n")
    (source / "program").chmod(0o755)
    host_copies.copy(str(source), str(tmp_path / "target"))
    assert _names(tmp_path / "target") == {"program"}
    assert (tmp_path / "target/program").stat().st_mode & 0o777 == 0o555
