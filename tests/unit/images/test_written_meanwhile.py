"""An image is written to the disk while it is unpacked, and what goes wrong is told as before."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from cellwall.runtimes.jail.images import unpacking


class Disk:
    """Stands for syncfs(2), and is waited for."""

    def __init__(self) -> None:
        self.trees: list[Path] = []
        self._written = threading.Semaphore(0)

    def write(self, tree: Path) -> None:
        self.trees.append(tree)
        self._written.release()

    async def wait(self, times: int) -> None:
        for _ in range(times):
            assert await asyncio.to_thread(self._written.acquire, timeout=30)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(unpacking, "_synced", found.write)
    monkeypatch.setattr(unpacking, "_EARLY_S", 0.001)
    return found


def _do(tree: Path, work: Any) -> Any:
    return asyncio.run(unpacking._written_meanwhile(tree, work))


def test_tree_is_written_until_the_work_is_done(tmp_path: Path, disk: Disk) -> None:
    async def work() -> str:
        await disk.wait(3)
        return "done"

    assert _do(tmp_path, work()) == "done"
    assert set(disk.trees) == {tmp_path}


def test_error_of_the_work_is_raised(tmp_path: Path, disk: Disk) -> None:
    async def work() -> str:
        await disk.wait(1)
        raise OSError("no such layer")

    with pytest.raises(OSError, match="no such layer"):
        _do(tmp_path, work())


def test_disk_that_cannot_be_written_ends_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_cancelled = threading.Event()

    def fails(tree: Path) -> None:
        raise OSError(28, f"no space left in {tree}")

    async def work() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            is_cancelled.set()
        return ""

    monkeypatch.setattr(unpacking, "_synced", fails)
    monkeypatch.setattr(unpacking, "_EARLY_S", 0.001)
    with pytest.raises(OSError, match="no space left"):
        _do(tmp_path, work())
    assert is_cancelled.is_set()
