"""What a machine may promise, read from files of the kernel that a test wrote."""

from __future__ import annotations

import errno
import os
import resource
import time
from pathlib import Path

import pytest

from cellwall.engine.scheduling import capacity
from cellwall.engine.scheduling.admission import UNBOUNDED, Cost, Machine, Overcommit
from cellwall.engine.scheduling.capacity import Files
from cellwall.engine.scheduling.exhaustion import Failure, instead_of
from cellwall.engine.scheduling.host_headroom import HostHeadroom, is_out_of_processes
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    HostUnsupported,
    SandboxBroken,
    UsageError,
)
from cellwall.runtimes.channel.replies import ChannelLost


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


# -- what is really free -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "least", "is_full"),
    [("MemAvailable: 2048000 kB\n", 256, False), ("MemAvailable: 1024 kB\n", 256, True),
     ("nonsense", 256, False), ("MemAvailable: 1024 kB\n", 0, False)],
)  # fmt: skip
def test_room_is_what_the_kernel_says(tmp_path: Path, text: str, least: int, is_full: bool) -> None:
    (tmp_path / "meminfo").write_text(text)
    if is_full:
        with pytest.raises(CapacityError, match=r"memory: .* left for another sandbox"):
            HostHeadroom(least, Files(tmp_path)).check()
    else:
        HostHeadroom(least, Files(tmp_path)).check()


@pytest.mark.parametrize(("used", "is_full"), [(10, False), (-10, True)])
def test_room_for_descriptors_is_kept(tmp_path: Path, used: int, is_full: bool) -> None:
    """`used`: as many are open, counted from none or back from the limit."""
    soft = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 20_000)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        folder = tmp_path / "self/fd"
        folder.mkdir(parents=True)
        for number in range(used if used > 0 else soft + used):
            (folder / str(number)).touch()
        if is_full:
            with pytest.raises(CapacityError, match="descriptors"):
                HostHeadroom(0, Files(tmp_path)).check()
        else:
            HostHeadroom(0, Files(tmp_path)).check()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def is_refused(headroom: HostHeadroom) -> bool:
    try:
        headroom.check()
    except CapacityError:
        return True
    return False


def test_room_is_read_again_before_it_can_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However quick they come: no time passes here between the first and the refused one."""
    folder = tmp_path / "self/fd"
    folder.mkdir(parents=True)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (280, 280))
    headroom = HostHeadroom(0, Files(tmp_path))
    opened = 0
    while not is_refused(headroom):
        for _ in range(4):
            (folder / str(opened)).touch()
            opened += 1
        assert opened < 280
    assert 280 - 96 < opened <= 280 - 96 + 4


def test_plenty_of_room_is_not_read_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = 0

    def listed(_: object) -> list[str]:
        nonlocal readings
        readings += 1
        return []

    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20_000, 20_000))
    monkeypatch.setattr(os, "listdir", listed)
    headroom = HostHeadroom(0, Files(tmp_path))
    for _ in range(1000):
        headroom.check()
    assert readings == 1


@pytest.mark.parametrize(("running", "is_full"), [(1000, False), (32_700, True)])
def test_room_for_processes_is_kept(files: Files, running: int, is_full: bool) -> None:
    (files.proc / "loadavg").write_text(f"0.1 0.2 0.3 2/{running} 4321\n")
    if is_full:
        with pytest.raises(CapacityError, match="processes"):
            HostHeadroom(0, files).check()
    else:
        HostHeadroom(0, files).check()


def _caused(outer: CellwallError, inner: OSError) -> CellwallError:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "says"),
    [(OSError(errno.EMFILE, "x"), "this process has no free descriptor"),
     (OSError(errno.ENOSPC, "x"), "disk has no free block or inode"),
     (HostUnsupported("jail", "clone", remedy="r", errno=errno.EAGAIN), "process"),
     (_caused(SandboxBroken("jail: x"), OSError(errno.ENOMEM, "x")), "memory"),
     (HostUnsupported("jail", "unshare", remedy="r", errno=errno.ENOSPC), None),
     (RuntimeError("can't start new thread"), "process or thread"),
     (RuntimeError("odd"), None),
     (OSError(errno.EPERM, "x"), None), (SandboxBroken("x"), None)],
)  # fmt: skip
def test_full_host_is_told_from_an_unsuited_one(error: Failure, says: str | None) -> None:
    found = instead_of(error)
    if says is None:
        assert found is error
    else:
        assert isinstance(found, CapacityError)
        assert says in found.message
        assert found.retry_after_s > 0


def test_sandbox_that_ends_before_it_is_ready_is_broken() -> None:
    found = instead_of(ChannelLost("guest channel: closed"))
    assert isinstance(found, SandboxBroken)
    assert "before it was ready" in found.message


@pytest.mark.parametrize(("current", "is_full"), [(50, False), (95, True)])
def test_group_without_processes_counts_as_a_full_host(
    files: Files, current: int, is_full: bool
) -> None:
    point = mount(files, "cgroup", "pids", "/a")
    (point / "a/pids.max").write_text("100\n")
    (point / "a/pids.current").write_text(f"{current}\n")
    assert is_out_of_processes(files) is is_full
    assert capacity.processes(files) == 100 - current


def test_epoll_watches_that_run_out_are_no_full_disk() -> None:
    """Raised where a loop has a descriptor watched; the control is the same errno alone."""

    def add_reader() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space") as failed:
        add_reader()
    meant = instead_of(failed.value)
    assert isinstance(meant, CapacityError)
    assert "epoll watch" in str(meant)
    assert "fs.epoll.max_user_watches" in str(meant.remedy)
    assert "disk" in str(instead_of(OSError(errno.ENOSPC, "x")))
