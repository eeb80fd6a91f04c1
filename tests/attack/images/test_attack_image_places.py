"""J01 and J02 of root inside, wherever it may write: no place of the root is outside of the limits.

Root is asked to fill every directory that a plain user cannot write to, on each runtime.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall import Verdict
from kit.images.host_tree import ImageArena, arena_behind

pytestmark = [pytest.mark.attack, pytest.mark.root]
LIMITS = {"disk_mb": 32, "inodes": 600, "memory_mb": 128, "file_mb": 200}
RAISED = {**LIMITS, "disk_mb": 300, "inodes": 4000, "memory_mb": 600}

FILL = """
import json, os, sys
def full(folder):
    size = made = 0
    try:
        with open(f"{folder}/fill", "wb", buffering=0) as file:
            while size < 160 << 20:
                size += file.write(bytes(1 << 20))
    except OSError:
        pass
    try:
        os.truncate(f"{folder}/fill", 0)
        while made < 3000:
            os.close(os.open(f"{folder}/many{made}", os.O_CREAT | os.O_WRONLY))
            made += 1
    except OSError:
        pass
    for number in range(made):
        os.unlink(f"{folder}/many{number}")
    return size >> 20, made
print(json.dumps({folder: full(folder) for folder in FOLDERS}))
"""
FOLDERS = (
    "/",
    "/dev/shm",
    "/dev/pts",
    "/etc",
    "/opt/cellwall",
    "/proc",
    "/run",
    "/sys",
    "/var/tmp",
)


@pytest.fixture(scope="module", params=["jail", "docker", "gvisor"])
def place(request: pytest.FixtureRequest, image_tree: Path) -> Iterator[ImageArena]:
    arena = arena_behind(request, request.param, image_tree)
    yield arena
    arena.close()


def _filled(place: ImageArena, *folders: str, limits: dict[str, int]) -> dict[str, list[int]]:
    said = place.do(place.on_image(f"FOLDERS = {folders!r}\n{FILL}", limits, 60))
    assert said.exit_code == 0, said
    found: dict[str, list[int]] = json.loads(said.stdout)
    return found


def test_every_place_that_root_may_write_counts(place: ImageArena) -> None:
    folders = FOLDERS if place.choice["runtime"] == "gvisor" else (*FOLDERS, "/dev")
    for folder, (size, made) in _filled(place, *folders, limits=LIMITS).items():
        assert size <= LIMITS["disk_mb"], folder
        assert made <= LIMITS["inodes"], folder


def test_places_hold_more_under_raised_limits(place: ImageArena) -> None:
    """The control."""
    for size, made in _filled(place, "/", "/dev/shm", limits=RAISED).values():
        assert (size, made) == (160, 3000)


def test_devices_of_gvisors_kernel_count_as_memory(place: ImageArena) -> None:
    """There /dev is of the inside's own kernel, and what root writes there is its memory."""
    if place.choice["runtime"] != "gvisor":
        return
    said = place.do(place.on_image(f"FOLDERS = ['/dev']\n{FILL}", LIMITS, 60))
    assert getattr(said.outcome, "verdict", None) is Verdict.MEMORY, said
    assert _filled(place, "/dev", limits=RAISED) == {"/dev": [160, 3000]}
