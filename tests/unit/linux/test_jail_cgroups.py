"""Which cgroups we may use, on hosts this one is not; and what is written into them.

The trees are plain directories and the kernel's texts are parameters, so magic numbers and access
rights are the table's; what a real kernel does with the values is tested in real jails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.linux import owner_label
from cellwall.linux.cgroups import freezer, hierarchies, leftovers, sandbox_groups
from cellwall.linux.cgroups.engine_tree import EngineGroups
from cellwall.linux.syscalls import mounts
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.model.limits import Limits

V2_FILES = {
    "cgroup.procs": "",
    "cgroup.subtree_control": "",
    "cgroup.controllers": "cpuset cpu io memory pids",
}
LIMITS = Limits(memory_mb=64, processes=30, cpus=0.5)


class Host:
    """A host's cgroup trees below a directory of the test's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mountinfo = ["22 1 0:21 / /proc rw,nosuid - proc proc rw"]
        self.own: list[str] = []
        self.magic: dict[str, int] = {}
        self.closed: set[Path] = set()

    def mount(self, point: str, kind: str, options: str, *, shows: str = "/") -> Path:
        """Mount a hierarchy; `shows` is the root of the mount."""
        path = self.root / point
        path.mkdir(parents=True, exist_ok=True)
        escaped = str(path).replace(" ", "\\040")
        line = f"30 22 0:26 {shows} {escaped} rw,nosuid shared:5 - {kind} {kind} rw,{options}"
        self.mountinfo.append(line)
        number = mounts.CGROUP_SUPER_MAGIC if kind == "cgroup" else mounts.CGROUP2_SUPER_MAGIC
        self.magic[str(path)] = number
        return path

    def group(self, path: Path, *, procs: str = "", root: bool = False, **files: str) -> Path:
        """Make a v2 group with its files."""
        path.mkdir(parents=True, exist_ok=True)
        for name, text in V2_FILES.items():
            (path / name).write_text(text)
        (path / "cgroup.procs").write_text(procs)
        for name, text in files.items():
            (path / name.replace("_", ".", 1)).write_text(text)
        if not root:
            (path / "cgroup.type").write_text("domain\n")
        return path

    def writable(self, path: Path) -> bool:
        """Report whether the user may write there, according to the table."""
        place = path.parent if path.is_file() else path
        return path.exists() and place not in self.closed

    def layout(self) -> hierarchies.Layout:
        """Ask as the engine does."""
        view = hierarchies.View(
            "\n".join(self.mountinfo) + "\n",
            "".join(line + "\n" for line in self.own),
            lambda point: self.magic.get(point, 0),
            self.writable,
        )
        return hierarchies.discover(view)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host without any cgroups."""
    return Host(tmp_path)


def _v1(host: Host) -> dict[str, Path]:
    points = {name: host.mount(name, "cgroup", name) for name in ("memory", "pids", "cpu,cpuacct")}
    host.own = ["4:memory:/", "3:pids:/", "2:cpu,cpuacct:/", "1:name=systemd:/"]
    return points


def test_no_cgroups_hold_nothing_hard(host: Host) -> None:
    layout = host.layout()
    assert (layout.hierarchies, layout.hard) == ((), frozenset())


def test_v1_controllers_are_found_each_in_its_hierarchy(host: Host) -> None:
    points = _v1(host)
    layout = host.layout()
    assert layout.hard == {"memory", "pids", "cpu", "cpuacct"}
    memory = layout.having("memory")
    assert memory is not None
    assert (memory.version, memory.base) == (1, points["memory"])


def test_v1_starts_below_our_own_cgroup(host: Host) -> None:
    point = host.mount("memory", "cgroup", "memory")
    host.own = ["4:memory:/outer/ours"]
    (point / "outer" / "ours").mkdir(parents=True)
    assert [h.base for h in host.layout().hierarchies] == [point / "outer" / "ours"]


def test_v1_mount_of_a_container_starts_at_its_own_root(host: Host) -> None:
    point = host.mount("memory", "cgroup", "memory", shows="/docker/abc")
    host.own = ["4:memory:/docker/abc"]
    assert [h.base for h in host.layout().hierarchies] == [point]


def test_hybrid_leaves_the_bare_v2_tree_alone(host: Host) -> None:
    _v1(host)
    unified = host.mount("unified", "cgroup2", "")
    host.group(unified, root=True, cgroup_controllers="")
    host.own.append("0::/")
    assert {h.version for h in host.layout().hierarchies} == {1}


def test_a_hierarchy_mounted_twice_is_used_once(host: Host) -> None:
    host.mount("memory", "cgroup", "memory")
    host.mount("again", "cgroup", "memory")
    host.own = ["4:memory:/"]
    assert len(host.layout().hierarchies) == 1


@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_a_tmpfs_in_place_of_a_hierarchy_is_refused(host: Host, kind: str) -> None:
    point = host.mount("memory", kind, "memory")
    host.group(point, root=True)
    host.own = ["4:memory:/", "0::/"]
    assert host.layout().hard  # the control: with the right magic it is taken
    host.magic[str(point)] = mounts.TMPFS_MAGIC
    assert host.layout().hierarchies == ()


def test_a_real_tmpfs_has_not_a_cgroups_magic() -> None:
    assert hierarchies.View("", "").magic("/dev") not in {
        mounts.CGROUP_SUPER_MAGIC,
        mounts.CGROUP2_SUPER_MAGIC,
    }


def test_a_covered_mount_point_is_refused(tmp_path: Path) -> None:
    line = f"30 22 0:26 / {tmp_path}/gone rw - cgroup cgroup rw,memory\n"
    assert hierarchies.discover(hierarchies.View(line, "4:memory:/\n")).hierarchies == ()


def test_a_mount_point_with_a_space_is_found(host: Host) -> None:
    point = host.mount("odd place", "cgroup", "memory")
    host.own = ["4:memory:/"]
    assert [h.base for h in host.layout().hierarchies] == [point]


def test_v2_root_user_takes_the_real_root(host: Host) -> None:
    point = host.mount("cgroup", "cgroup2", "nsdelegate")
    host.group(point, root=True, procs="1\n2\n")
    host.group(point / "user.slice" / "session", procs="77\n")
    host.own = ["0::/user.slice/session"]
    layout = host.layout()
    assert [h.base for h in layout.hierarchies] == [point]
    assert layout.hard == {"memory", "pids", "cpu"}


def test_v2_user_takes_what_systemd_delegated(host: Host) -> None:
    point = host.mount("cgroup", "cgroup2", "nsdelegate")
    service = point / "user.slice" / "user@1000.service"
    host.group(point, root=True)
    host.group(point / "user.slice")
    host.group(service, cgroup_controllers="memory pids")
    host.group(service / "run.scope", procs="77\n")
    host.own = ["0::/user.slice/user@1000.service/run.scope"]
    host.closed = {point, point / "user.slice"}
    layout = host.layout()
    assert [h.base for h in layout.hierarchies] == [service]
    assert layout.hard == {"memory", "pids"}


def test_v2_top_of_a_container_that_holds_us_holds_nothing_hard(host: Host) -> None:
    """The kernel answers EBUSY to controllers in a group with processes; see cgroup-v2, "No
    Internal Process Constraint"."""
    point = host.mount("cgroup", "cgroup2", "nsdelegate")
    host.group(point, procs="1\n77\n")
    host.own = ["0::/"]
    layout = host.layout()
    assert [(h.base, h.controllers) for h in layout.hierarchies] == [(point, frozenset())]
    assert "holds processes" in layout.why_not


def test_v2_without_write_access_says_so(host: Host) -> None:
    point = host.mount("cgroup", "cgroup2", "")
    host.group(point, root=True)
    host.own = ["0::/"]
    host.closed = {point}
    layout = host.layout()
    assert layout.hierarchies == ()
    assert layout.why_not == f"no write access to {point}"


# -- what is written -------------------------------------------------------------------------


def _v2_groups(path: Path) -> sandbox_groups.Groups:
    for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"):
        (path / name).write_text("")
    (path / "cgroup.procs").write_text("")
    controllers = frozenset({"memory", "pids", "cpu"})
    return sandbox_groups.Groups(((hierarchies.Hierarchy(2, controllers, path.parent), str(path)),))


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii")


def test_v2_limits_are_written_in_the_kernels_words(tmp_path: Path) -> None:
    _v2_groups(tmp_path).apply(LIMITS)
    written = {path.name: _text(path) for path in tmp_path.iterdir()}
    assert written == {
        "memory.max": str(64 * 1024 * 1024),
        "memory.swap.max": "0",
        "memory.oom.group": "0",
        "pids.max": str(LIMITS.processes + sandbox_groups.OWN_PROCESSES),
        "cpu.max": "50000 100000",
        "cgroup.procs": "",
    }


def test_a_limit_the_kernel_does_not_know_is_refused(tmp_path: Path) -> None:
    groups = _v2_groups(tmp_path)
    (tmp_path / "pids.max").unlink()
    with pytest.raises(HostUnsupported, match=r"write 31 to .*/pids\.max: .*cellwall doctor"):
        groups.apply(LIMITS)
    assert not (tmp_path / "pids.max").exists()


def test_v2_counters_are_read(tmp_path: Path) -> None:
    groups = _v2_groups(tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.peak").write_text("4000\n")
    (tmp_path / "memory.events").write_text("low 0\noom 7\noom_kill 3\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "pids.events").write_text("max 9\n")
    (tmp_path / "pids.peak").write_text("12\n")
    assert groups.memory() == (1000, 4000, 3)
    assert (groups.cpu_s(), groups.processes_peak()) == (2.5, 12)
    assert groups.processes_refused(12) == 9
    groups.applied[str(tmp_path / "pids.max")] = "13"
    assert groups.processes_refused(12) == 0


@pytest.fixture(autouse=True)
def _every_directory_is_another_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_groups, "_there", set())


@pytest.mark.parametrize(("before", "after"), [(64, 32), (32, 64)])
def test_v1_memory_and_swap_keep_their_order(tmp_path: Path, before: int, after: int) -> None:
    """memory.memsw must never be below memory, whichever way a limit moves: EINVAL otherwise."""
    order = []

    class Recording(sandbox_groups.Groups):
        def _set(self, path: str, value: str) -> None:
            order.append(os.path.basename(path))
            super()._set(path, value)

    both, single = "memory.memsw.limit_in_bytes", "memory.limit_in_bytes"
    for name in (both, single, "memory.swappiness"):
        (tmp_path / name).write_text("")
    hierarchy = hierarchies.Hierarchy(1, frozenset({"memory"}), tmp_path.parent)
    groups = Recording(((hierarchy, str(tmp_path)),))
    groups.apply(Limits(memory_mb=before))
    order.clear()
    groups.apply(Limits(memory_mb=after))
    expected = [both, single] if after > before else [single, both]
    assert [name for name in order if "limit" in name] == expected


def test_v1_buffers_of_connections_have_a_quarter_beside_the_memory(tmp_path: Path) -> None:
    for name in ("memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"):
        (tmp_path / name).write_text("")
    hierarchy = hierarchies.Hierarchy(1, frozenset({"memory"}), tmp_path.parent)
    sandbox_groups.Groups(((hierarchy, str(tmp_path)),)).apply(Limits(memory_mb=64))
    assert _text(tmp_path / "memory.limit_in_bytes") == str(64 << 20)
    assert _text(tmp_path / "memory.kmem.tcp.limit_in_bytes") == str(16 << 20)


def _v1_groups(path: Path, peak: int = 3) -> sandbox_groups.Groups:
    texts = {"pids.peak": f"{peak}\n", "cpuacct.usage": "5000000000\n"}
    for name in ("pids.max", "cpu.cfs_quota_us", "cgroup.procs"):
        texts[name] = ""
    for name, text in texts.items():
        (path / name).write_text(text)
    controllers = frozenset({"pids", "cpu", "cpuacct"})
    return sandbox_groups.Groups(((hierarchies.Hierarchy(1, controllers, path.parent), str(path)),))


@pytest.mark.parametrize(("peak", "is_kept"), [(16, True), (17, False)])
def test_v1_directory_with_a_high_peak_serves_nobody_else(
    tmp_path: Path, peak: int, is_kept: bool
) -> None:
    """It cannot be set back, and a sandbox behind it would be told it had so many processes."""
    groups = _v1_groups(tmp_path, peak)
    groups.apply(LIMITS)  # of more processes than that: none was refused
    groups.begin()
    kept, left = groups.reusable()
    assert kept == ({str(tmp_path)} if is_kept else set())
    assert not is_kept or left == peak


def test_v1_cpu_time_of_the_sandbox_before_is_not_the_next_ones(tmp_path: Path) -> None:
    groups = _v1_groups(tmp_path)
    assert groups.cpu_s() == 5.0
    groups.begin()
    assert groups.cpu_s() == 0.0


@pytest.mark.parametrize(("before", "after"), [(None, 12), (9, 9), (3, 12)])
def test_set_up_keeps_a_limit_of_processes_that_has_room_for_it(
    tmp_path: Path, before: int | None, after: int
) -> None:
    groups = _v1_groups(tmp_path)
    if before is not None:
        groups.apply(replace(LIMITS, processes=before - sandbox_groups.OWN_PROCESSES))
    groups.apply(replace(LIMITS, processes=10), guests=1)
    assert _text(tmp_path / "pids.max") == str(after)
    groups.apply(replace(LIMITS, processes=10))
    assert _text(tmp_path / "pids.max") == "11"


def test_the_posture_expects_engine_and_sandbox_names(tmp_path: Path) -> None:
    path = tmp_path / "cellwall.label" / "sandbox"
    hierarchy = hierarchies.Hierarchy(2, frozenset(), tmp_path)
    groups = sandbox_groups.Groups(((hierarchy, str(path)),))
    assert groups.expected_lines() == {":cellwall.label/sandbox"}
    assert groups.expected_lines() <= sandbox_groups.places("0::/some/cellwall.label/sandbox\n")


def test_each_controller_has_its_own_place(tmp_path: Path) -> None:
    """A process that is in the right directory of one hierarchy only is not where it should be."""
    pids = hierarchies.Hierarchy(1, frozenset({"pids"}), tmp_path)
    cpu = hierarchies.Hierarchy(1, frozenset({"cpu", "cpuacct"}), tmp_path)
    both = sandbox_groups.Groups(
        ((pids, "/p/cellwall.label/spare0"), (cpu, "/c/cellwall.label/spare0"))
    )
    right = "8:pids:/cellwall.label/spare0\n1:cpu,cpuacct:/cellwall.label/spare0\n0::/\n"
    assert both.expected_lines() <= sandbox_groups.places(right)
    for wrong in ("8:pids:/cellwall.label/spare1", "8:pids:/"):
        text = right.replace("8:pids:/cellwall.label/spare0", wrong)
        assert not both.expected_lines() <= sandbox_groups.places(text)


def test_a_sweep_touches_no_label_it_cannot_judge(tmp_path: Path) -> None:
    (tmp_path / "cellwall.somebody-elses").mkdir()
    (tmp_path / f"cellwall.{owner_label.new_label()}").mkdir()
    layout = hierarchies.Layout((hierarchies.Hierarchy(2, frozenset(), tmp_path),))
    assert leftovers.sweep(layout, owner_label.is_dead) == (0, [])
    assert len(list(tmp_path.iterdir())) == 2


def test_sweep_finds_a_dead_engine_in_a_cgroup_that_is_not_ours(tmp_path: Path) -> None:
    """It may have run in another session, whose cgroup it nested its own in."""
    (tmp_path / "another" / "cellwall.dead").mkdir(parents=True)
    (tmp_path / "another" / "cellwall.alive").mkdir()
    ours = tmp_path / "ours"
    ours.mkdir()
    hierarchy = hierarchies.Hierarchy(1, frozenset({"memory"}), ours, tmp_path)
    (tmp_path / "another" / "cellwall.dead" / "cgroup.procs").write_text("")
    found = [path.name for path in leftovers._engines_in(hierarchy)]
    assert sorted(found) == ["cellwall.alive", "cellwall.dead"]


def test_sweep_survives_a_sandbox_of_another_engine_that_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = tmp_path / f"cellwall.{owner_label.new_label()}"
    (busy / "1").mkdir(parents=True)
    real = os.scandir

    def scandir(path: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "1":
            os.rmdir(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    layout = hierarchies.Layout((hierarchies.Hierarchy(1, frozenset({"memory"}), tmp_path),))
    assert leftovers.sweep(layout, lambda _label: False) == (0, [])
    assert busy.exists()


def test_processes_are_frozen_in_v2_wherever_it_is_mounted(host: Host) -> None:
    for name in ("memory", "pids", "cpu", "cpuacct", "freezer"):
        host.mount(name, "cgroup", name)
        host.own.append(f"5:{name}:/")
    v1 = host.layout()
    assert v1.freezing is not None
    assert (v1.freezing.version, v1.freezing.base) == (1, host.root / "freezer")
    assert "freezer" not in v1.hard  # no sandbox pays for a move there at its start
    unified = host.mount("unified", "cgroup2", "rw")
    host.group(unified, root=True, cgroup_controllers="")
    host.own.append("0::/")
    both = host.layout()
    assert both.freezing is not None
    assert (both.freezing.version, both.freezing.base) == (2, unified)
    assert both.freezing not in both.hierarchies
    assert both.lets_move_itself
    assert [each.base.name for each in both.all_used[:2]] == ["unified", "freezer"]


def test_without_a_writable_freezer_a_pause_is_refused(host: Host) -> None:
    host.own.append("5:freezer:/")
    host.closed.add(host.mount("freezer", "cgroup", "freezer"))
    layout = host.layout()
    assert layout.freezing is None
    with pytest.raises(HostUnsupported) as refused:
        EngineGroups(layout, owner_label.new_label()).check_freezing()
    assert refused.value.remedy


def test_freezer_that_does_not_freeze_is_an_error_and_thaws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezer, "_PATIENCE_S", 0.05)
    (tmp_path / "cgroup.freeze").write_text("0")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    found = freezer.Freezer(str(tmp_path), 2, is_own=False)
    with pytest.raises(SandboxBroken, match="did not stop"):
        found.freeze(set)
    assert (tmp_path / "cgroup.freeze").read_text() == "0"
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    found.freeze(set)  # the control
    assert (tmp_path / "cgroup.freeze").read_text() == "1"


def test_nothing_is_frozen_once_it_is_to_die(tmp_path: Path) -> None:
    (tmp_path / "freezer.state").write_text("THAWED")
    found = freezer.Freezer(str(tmp_path), 1, is_own=False)
    found.let_die()
    found.freeze(set)
    assert (tmp_path / "freezer.state").read_text() == "THAWED"
