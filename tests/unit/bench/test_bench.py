"""The bench judges honestly and reads the kernel rightly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.linux import owner_label
from cellwall.linux.cgroups import hierarchies
from cellwall.linux.cgroups.engine_tree import EngineGroups, most_spare_directories
from cellwall.model.limits import Limits
from cellwall_bench import bare, containers
from cellwall_bench.endurance import left_behind
from cellwall_bench.figures import BY_KEY, TARGETS, Figure, p95, ratio_of_medians, verdict_on
from cellwall_bench.machine import describe
from cellwall_bench.processes import Holdings, descendants, holdings, pss_bytes
from cellwall_bench.report import Result, as_json, markdown
from cellwall_bench.runner import QUICK, Bench
from conftest import Require
from kit import docker_daemon
from kit.places import ROOT, TESTS


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Give a shell with a child of its own, both waiting for our end of a pipe."""
    argv = ["/bin/sh", "-c", "cat; exit 0"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"there\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"there\n"  # so `cat` runs
        yield process
        process.stdin.close()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("fresh_python_parked", 0.2, "aim"),
        ("fresh_python_parked", 0.5, "bar"),
        ("fresh_python_parked", 0.51, "missed"),
        ("sustained_data", 50.0, "aim"),
        ("sustained_data", 25.0, "bar"),
        ("sustained_data", 24.9, "missed"),
        ("soak", 0, "aim"),
        ("soak", 1, "missed"),
        ("pss_data", None, "not measured"),
    ],
)
def test_a_figure_is_judged_by_its_bar(key: str, value: float | None, expected: str) -> None:
    assert verdict_on(Figure(key, value)) == expected


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.key)
def test_no_aim_is_easier_than_its_bar(target: object) -> None:
    row = next(t for t in TARGETS if t is target)
    assert row.meets(row.aim, row.bar)


def test_ratio_compares_medians_not_means() -> None:
    assert ratio_of_medians([1.0, 1.0, 100.0], [2.0, 2.0, 2.0]) == 0.5
    assert p95([float(n) for n in range(100)]) == 95.0


def test_the_floor_is_really_run() -> None:
    assert 0.0005 < bare.once(bare.FLOOR) < 5
    with pytest.raises(RuntimeError, match="printed b''"):
        bare.once((bare.FLOOR[0], "-c", "pass"))


def test_throughput_of_the_floor_counts_every_caller() -> None:
    assert bare.per_second(("/bin/echo", "1"), callers=2, duration_s=0.2) > 10


def test_processes_below_are_found_at_any_depth(child: subprocess.Popen[bytes]) -> None:
    below = descendants(os.getpid())
    assert child.pid in below
    assert set(descendants(child.pid)) < set(below)
    assert child.pid not in descendants(child.pid)


def test_memory_of_a_process_is_its_share(child: subprocess.Popen[bytes]) -> None:
    assert 0 < pss_bytes([child.pid]) < 64 << 20
    assert pss_bytes([2**22 - 1]) == 0


def test_a_forgotten_descriptor_process_and_file_are_counted(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    before = holdings(tmp_path)
    assert holdings(tmp_path).beyond(before) == {}
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as forgotten:
        (tmp_path / "left").touch()
        more = holdings(tmp_path).beyond(before)
        assert more["processes"] == 1
        assert more["state_files"] == 1
        assert more["descriptors"] >= 1
        assert forgotten.stdin is not None
        forgotten.stdin.close()


@pytest.mark.parametrize(
    ("spare", "cgroups", "left"),
    [
        ((6, 12), (20, 20), {}),
        ((12, 6), (20, 20), {}),
        ((12, 13), (20, 20), {"spare_cgroups": 1}),
        ((9, 300), (20, 20), {"spare_cgroups": 288}),
        ((13, 13), (20, 20), {"spare_cgroups": 1}),
        ((12, 12), (20, 23), {"cgroups": 3}),
    ],
)
def test_cgroups_kept_for_reuse_are_litter_beyond_their_bound(
    tmp_path: Path, spare: tuple[int, int], cgroups: tuple[int, int], left: dict[str, int]
) -> None:
    """An engine may hold twelve here, and how many of them it does differs; one more is a leak."""
    now = holdings(tmp_path)
    before, after = (
        replace(now, spare_cgroups=kept, cgroups=used)
        for kept, used in zip(spare, cgroups, strict=True)
    )
    assert left_behind(before, after, {"spare_cgroups": 12}) == left


def _without_mounts(folder: Path) -> Holdings:
    """Other tests mount meanwhile, which takes no descriptor of this process."""
    return replace(holdings(folder), mounts=0)


def test_network_a_worker_keeps_is_counted_with_all_its_descriptors(tmp_path: Path) -> None:
    """A worker has its own open and one more, which is a pidfd and what the kernel says of it."""
    with contextlib.ExitStack() as opened:

        def hold(path: str) -> None:
            opened.callback(os.close, os.open(path, os.O_RDONLY))

        hold("/proc/self/ns/net")
        before = _without_mounts(tmp_path)
        for path in ("/proc/self/ns/net", "/proc/self/net/dev", "/proc/self/net/snmp"):
            hold(path)
        opened.callback(os.close, os.pidfd_open(os.getpid()))
        assert _without_mounts(tmp_path).beyond(before) == {"kept_networks": 1}
        hold(os.devnull)  # the control
        assert _without_mounts(tmp_path).beyond(before) == {"kept_networks": 1, "descriptors": 1}
        assert left_behind(
            before, _without_mounts(tmp_path), {"kept_networks": before.kept_networks}
        ) == {
            "descriptors": 1,
            "kept_networks": 1,
        }


@pytest.mark.root
def test_cgroups_of_this_process_are_counted_by_kind(tmp_path: Path, require: Require) -> None:
    layout = hierarchies.discover()
    require("cgroups", {"memory", "pids"} <= layout.hard, layout.why_not)
    groups = EngineGroups(layout, owner_label.new_label())
    before = holdings(tmp_path)
    made = groups.create(Limits())
    more = holdings(tmp_path)
    assert made.remove() == []
    least = most_spare_directories(layout, workers=0)
    groups.remove()
    # What is made empties into spares; only a memory controller's directory is never one.
    assert more.cgroups - before.cgroups >= 2  # the engine's own, and the sandbox's with memory
    assert more.spare_cgroups - before.spare_cgroups >= least
    assert holdings(tmp_path) == before


@pytest.mark.parametrize(
    ("missing", "said"), [("daemon", "nobody does not answer"), ("client", "no `docker` to")]
)
def test_docker_that_is_not_all_there_is_not_measured_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require: Require, missing: str, said: str
) -> None:
    if missing == "client":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        require("docker", shutil.which("docker") is not None, "apt-get install docker.io")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    monkeypatch.setenv("CELLWALL_STATE_DIR", str(tmp_path))
    key = "docker_no_pool"
    bench = Bench(QUICK, "namespace", {})
    figure = asyncio.run(bench._row(key, 0, lambda engine: containers.fresh(engine, key, 1)))
    assert verdict_on(figure) == "not measured"
    assert said in figure.detail


@pytest.mark.root
@pytest.mark.needs("ps")
def test_bench_has_a_daemon_of_its_own_that_is_gone_with_it(
    require: Require, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("a container engine", not docker_daemon.missing(), docker_daemon.missing())
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/socket")
    script = ROOT / "bench" / "with_docker.py"
    asked = ["docker", "info", "--format", "{{.DockerRootDir}} {{.ServerVersion}}"]
    done = subprocess.run(
        [sys.executable, str(script), *asked],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    folder, version = done.stdout.split()
    assert (done.returncode, version != "") == (0, True), done.stderr
    assert "cellwall-dockerd-" in folder
    assert not Path(folder).parent.exists()
    processes = subprocess.check_output(["ps", "-eo", "args"], text=True)
    assert str(Path(folder).parent) not in processes


def test_built_templates_are_no_litter(tmp_path: Path) -> None:
    before = holdings(tmp_path)
    (tmp_path / "templates" / "abc").mkdir(parents=True)
    (tmp_path / "templates" / "abc" / "file").touch()
    assert holdings(tmp_path).state_files == before.state_files + 1  # the folder itself


def result(*figures: Figure) -> Result:
    return Result(describe(), "2026-01-01 00:00", 61.0, True, "namespace", figures)


def test_results_show_misses_and_gaps_beside_successes() -> None:
    text = markdown(
        result(
            Figure("fresh_python_parked", 0.2, "1 ms"),
            Figure("live_context", 0.9),
            Figure("flood", None, "failed: a | b"),
        )
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[4] for row in rows[2:]] == ["aim", "missed", "not measured"]
    assert "a \\| b" in rows[-1]


def test_results_as_json_carry_bar_and_machine() -> None:
    got = json.loads(json.dumps(as_json(result(Figure("soak", 0.0)))))
    assert got["figures"][0]["bar"] == BY_KEY["soak"].bar
    assert got["figures"][0]["reached"] == "aim"
    assert got["machine"]["cores"] >= 1
    assert os.uname().nodename not in json.dumps(got) or len(os.uname().nodename) < 4
