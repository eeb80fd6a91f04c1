"""Files without names: one directory gives many, and outlives its removal as an error or anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.linux.nameless import Folder

pytestmark = [pytest.mark.root]


def test_files_have_no_name_and_tell_no_path(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    made = [folder.made() for _ in range(3)]
    try:
        assert not list(tmp_path.iterdir())
        assert len({os.fstat(each).st_ino for each in made}) == 3
        for each in made:
            assert str(tmp_path) not in os.readlink(f"/proc/self/fd/{each}")
    finally:
        folder.close()
    assert os.pwrite(made[0], b"there still", 0) == 11
    for each in made:
        os.close(each)


def test_directory_that_was_made_anew_gives_files_again(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    folder = Folder(place)
    os.close(folder.made())
    place.rmdir()
    with pytest.raises(FileNotFoundError):
        folder.made()
    place.mkdir()
    os.close(folder.made())
    before = len(os.listdir("/proc/self/fd"))
    folder.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1
