"""Engines killed while an image comes: what they left is swept, what lives is not touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import command_line, waiting
from kit.images import archives, registry
from kit.images.archives import config_of, layer, member

pytestmark = pytest.mark.root


@contextmanager
def pulling(image: str, place: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """`cellwall images pull`, killed at the end."""
    running = subprocess.Popen(
        [sys.executable, "-m", "cellwall.apps.cli.main", "images", "pull", image],
        env={**os.environ, "CELLWALL_STATE_DIR": str(place), **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait(20)


def swept(place: Path) -> dict[str, int]:
    done = command_line.start("sweep", "--json", CELLWALL_STATE_DIR=str(place))
    assert done.returncode == 0, done.stderr
    removed: dict[str, int] = json.loads(done.stdout)["removed"]
    return {kind: count for kind, count in removed.items() if "image" in kind and count}


def left(place: Path, pattern: str) -> list[Path]:
    return list((place / "images").glob(pattern))


def test_layers_of_a_killed_pull_are_swept_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    with registry.running() as server:
        server.add("team/slow:1", [layer([member("a", b"one")])])
        server.may_serve.clear()
        listed = json.dumps([{"registry": server.host, "url": f"http://{server.host}"}])
        with pulling(server.name("team/slow:1"), tmp_path, CELLWALL_IMAGE_REGISTRIES=listed):
            waiting.wait_until(lambda: server.count("/blobs/") > 0, "the pull has begun")
            assert swept(tmp_path) == {}  # the control: its engine lives
            assert len(left(tmp_path, ".coming-*")) == 1
    assert len(left(tmp_path, ".coming-*")) == 1
    assert swept(tmp_path) == {"image layers": 1}
    assert left(tmp_path, "*") == []


def test_half_an_image_of_a_killed_engine_is_swept(tmp_path: Path) -> None:
    many = layer([member(f"d{n % 50}/f{n}", b"x" * 600) for n in range(30_000)])
    archive = archives.docker_archive(tmp_path / "many.tar", [many], config_of([many]))
    place = tmp_path / "state"
    with pulling(str(archive), place):
        waiting.wait_until(lambda: bool(left(place, "*/tree.partial-*")), "it is unpacked")
    (folder,) = left(place, "*/lock")
    assert not (folder.parent / "image.json").exists()
    assert swept(place) == {"unfinished images": 1}
    assert left(place, "*") == []
    done = command_line.start("images", "pull", str(archive), CELLWALL_STATE_DIR=str(place))
    assert done.returncode == 0, done.stderr
    assert swept(place) == {}
    assert len(left(place, "*/image.json")) == 1
