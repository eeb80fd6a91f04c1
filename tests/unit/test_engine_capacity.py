"""What a machine may promise, read from files of the kernel that a test wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.engine import capacity
from cellwall.engine.admission import UNBOUNDED, Cost, Machine, Overcommit
from cellwall.engine.capacity import Files
from cellwall.engine.room import Room
from cellwall.model.errors import CapacityError, UsageError


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return a host of 10,000 MiB, 32,768 pids of which 1,000 are taken, and no cgroups."""
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:       10240000 kB\nMemFree: 1 kB\n")
    (tmp_path / "loadavg").write_text("0.1 0.2 0.3 2/1000 4321\n")
    (tmp_path / "sys/kernel/pid_max").write_text("32768\n")
    (tmp_path / "sys/kernel/threads-max").write_text("40000\n")
    return Files(tmp_path)


def mount(files: Files, kind: str, options: str, own: str, root: str = "/") -> Path:
    """Mount a hierarchy in which we live at `own`; return its directory."""
    point = files.proc / f"mounted-{kind}-{options}"
    point.joinpath(own.strip("/")).mkdir(parents=True)
    with (files.proc / "self/mountinfo").open("a") as file:
        file.write(f"32 31 0:29 {root} {point} rw - {kind} {kind} rw,{options}\n")
    with (files.proc / "self/cgroup").open("a") as file:
        file.write(f"4:{options if kind == 'cgroup' else ''}:{own}\n")
    return point


def test_machine_without_groups_is_what_the_kernel_says(files: Files) -> None:
    assert capacity.memory_mb(files) == 10_000
    assert capacity.processes(files) == 31_768
    found = capacity.read(files=files)
    assert (found.memory_mb, found.processes) == (9_000, 28_591)
    assert found.disk_mb == UNBOUNDED


@pytest.mark.parametrize("at", ["", "a", "a/b"])
def test_lowest_group_above_us_counts_v1(files: Files, at: str) -> None:
    point = mount(files, "cgroup", "memory", "/a/b")
    for each in ("", "a", "a/b"):
        (point / each / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (point / at / "memory.limit_in_bytes").write_text(f"{2000 << 20}\n")
    assert capacity.memory_mb(files) == 2000


@pytest.mark.parametrize("at", ["a", "a/b"])
def test_lowest_group_above_us_counts_v2(files: Files, at: str) -> None:
    point = mount(files, "cgroup2", "nsdelegate", "/a/b")
    for each in ("a", "a/b"):
        (point / each / "memory.max").write_text("max\n")
        (point / each / "pids.max").write_text("max\n")
    (point / at / "memory.max").write_text(f"{3000 << 20}\n")
    (point / at / "pids.max").write_text("500\n")
    assert capacity.memory_mb(files) == 3000
    assert capacity.processes(files) == 500


def test_container_sees_its_own_group_as_the_top(files: Files) -> None:
    point = mount(files, "cgroup", "memory", "/docker/1", root="/docker/1")
    (point / "memory.limit_in_bytes").write_text(f"{1000 << 20}\n")
    assert capacity.memory_mb(files) == 1000


def test_what_cannot_be_read_bounds_nothing(tmp_path: Path) -> None:
    found = capacity.read(files=Files(tmp_path))
    assert found.memory_mb > 1 << 30
    assert Machine(found).as_json()["memory_mb_most"] is None or found.memory_mb < UNBOUNDED


def test_disk_is_what_is_free(tmp_path: Path) -> None:
    assert 0 <= capacity.read(tmp_path).disk_mb < UNBOUNDED


def test_this_machine_can_be_read() -> None:
    found = capacity.read()
    assert 64 < found.memory_mb < 1 << 30
    assert 10 < found.processes < 1 << 30


def test_thousand_idle_sandboxes_fit_where_they_do() -> None:
    """24 GiB and 1,000 sandboxes of 512 MiB: possible by default, not with everything promised."""
    limits = Cost(512, 100, 256, 1)
    default, none = Overcommit(32, 16), Overcommit()
    assert default.counted(limits).memory_mb * 1000 < 24_000 * 0.9
    assert default.counted(limits).processes * 1000 < 32_768 * 0.9
    assert none.counted(limits) == limits


def test_overcommit_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="overcommit"):
        Overcommit(memory=0)


@pytest.mark.parametrize(
    ("text", "least", "is_full"),
    [("MemAvailable: 2048000 kB\n", 256, False), ("MemAvailable: 1024 kB\n", 256, True),
     ("nonsense", 256, False), ("MemAvailable: 1024 kB\n", 0, False)],
)  # fmt: skip
def test_room_is_what_the_kernel_says(tmp_path: Path, text: str, least: int, is_full: bool) -> None:
    source = tmp_path / "meminfo"
    source.write_text(text)
    room = Room(least, source)
    if is_full:
        with pytest.raises(CapacityError):
            room.check()
    else:
        room.check()
