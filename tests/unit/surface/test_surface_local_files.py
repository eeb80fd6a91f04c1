"""Files of this machine that may not be read or written: an error that names them, nothing silent.

They are shut for their owner as well. Where that is root, who may read everything, it is tried by
a child that is nobody.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cellwall.model.errors import UsageError
from cellwall.surface.trees import local_files
from cellwall.surface.trees.local_files import Progress
from kit.jail import forked

_NOBODY = 65_534


@pytest.fixture
def folder(open_folder: Path) -> Path:
    """Make files and directories, of which some are shut."""
    for name in ("shut", "open"):
        (open_folder / "tree" / name).mkdir(parents=True)
        (open_folder / "tree" / name / "inner").write_text("x")
    (open_folder / "one").mkdir()
    (open_folder / "one" / "secret").write_text("x")
    (open_folder / "tree" / "shut").chmod(0)
    (open_folder / "one" / "secret").chmod(0)
    open_folder.chmod(0o555)
    return open_folder


async def _nothing() -> AsyncIterator[bytes]:
    for piece in (b"",):
        yield piece


async def _taken(pieces: AsyncIterator[bytes]) -> int:
    return sum([len(piece) async for piece in pieces])


def _told(work: Callable[[], Awaitable[object]]) -> str:
    """Return what of `work` is refused to whoever is not root."""

    async def main() -> str:
        try:
            await work()
        except UsageError as error:
            return error.message
        return "it was done"

    def as_nobody() -> Any:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        return asyncio.run(main())

    return str(forked.answer(as_nobody))


def test_directory_that_may_not_be_read_is_not_left_out(folder: Path) -> None:
    """Control: the one beside it goes."""
    tree, progress = folder / "tree", Progress(None)
    told = _told(lambda: _taken(local_files.tree_pieces(tree, progress)))
    assert told == f"upload_dir: read {tree / 'shut'}: Permission denied"
    opened = tree / "open"
    assert _told(lambda: _taken(local_files.tree_pieces(opened, progress))) == "it was done"


def test_file_that_may_not_be_read_is_named(folder: Path) -> None:
    secret = folder / "one" / "secret"
    tree = _told(lambda: _taken(local_files.tree_pieces(folder / "one", Progress(None))))
    assert tree == f"upload_dir: read {secret}: Permission denied"
    file = _told(lambda: _taken(local_files.file_pieces(secret, 1, Progress(None))))
    assert file == f"upload: read {secret}: Permission denied"
    inner = folder / "tree" / "shut" / "inner"
    checked = _told(lambda: local_files.check_file(inner, "upload"))
    assert checked == f"upload: read {inner}: Permission denied"


def test_place_that_may_not_be_written_is_named(folder: Path) -> None:
    place = folder / "new"
    tree = _told(lambda: local_files.unpack(place, _nothing(), 1 << 20, Progress(None)))
    assert tree == f"download_dir: write {place}: Permission denied"
    file = _told(lambda: local_files.save(place, _nothing(), Progress(None)))
    assert file == f"download: write {place}: Permission denied"
    below = folder / "tree" / "shut" / "new"
    hidden = _told(lambda: local_files.save(below, _nothing(), Progress(None)))
    assert hidden == f"download: write {below}: Permission denied"
