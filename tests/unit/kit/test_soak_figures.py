"""The soak's own judgement: a leak is seen, noise is not, and too little is not enough."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kit.figures import TOLERANCES, Reading, cgroups, judge, look

_STILL = Reading(0.0, 300.0, 90.0, 40.0, 12.0, 30.0, 24.0, 24.0, 70.0, 5.0, 110_000.0)


def _grown(figure: str, growth: float, count: int = 60) -> list[Reading]:
    return [
        replace(_STILL, at_s=10.0 * n, **{figure: getattr(_STILL, figure) + growth * n / count})
        for n in range(count)
    ]


@pytest.mark.parametrize("figure", TOLERANCES)
def test_leak_of_a_figure_is_seen_and_of_that_one_only(figure: str) -> None:
    lines = judge(_grown(figure, 2 * TOLERANCES[figure]))
    assert [line.figure for line in lines if not line.is_flat] == [figure]
    assert "GROWS" in str(next(line for line in lines if line.figure == figure))


@pytest.mark.parametrize("figure", TOLERANCES)
def test_noise_and_shrinking_are_flat(figure: str) -> None:
    noise = random.Random(7)
    size = TOLERANCES[figure] / 2
    noisy = [
        replace(each, **{figure: getattr(each, figure) + noise.uniform(-size, size)})
        for each in _grown(figure, -5 * TOLERANCES[figure])
    ]
    assert all(line.is_flat for line in judge(noisy))


def test_start_is_left_out_and_too_few_readings_say_nothing() -> None:
    warming = _grown("memory_mib", 0)
    for n in range(10):
        warming[n] = replace(warming[n], memory_mib=10.0 * n)
    assert all(line.is_flat for line in judge(warming))
    with pytest.raises(ValueError, match="too few"):
        judge(warming[:6])


def test_excursion_at_the_end_is_no_leak() -> None:
    readings = _grown("processes", 0)
    readings[-8:] = [replace(each, processes=34.0) for each in readings[-8:]]
    assert all(line.is_flat for line in judge(readings))


def test_reading_counts_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "temp").mkdir()
    before = look(os.getpid(), tmp_path, 0.0, 7)
    read_end, write_end = os.pipe()
    (tmp_path / "temp" / "left").touch()
    after = look(os.getpid(), tmp_path, 1.0, 9)
    os.close(read_end)
    os.close(write_end)
    assert after.descriptors == before.descriptors + 2
    assert after.temp_files == before.temp_files + 1
    assert after.objects == before.objects + 2
    assert after.server_mib > 0


def test_reading_ignores_what_others_have(tmp_path: Path) -> None:
    """Another engine's cgroups, processes and files are not ours, whatever it leaves."""
    own = look(os.getpid(), tmp_path, 0.0, 0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        theirs = look(other.pid, tmp_path, 0.0, 0)
        assert (theirs.processes, theirs.cgroups, theirs.temp_files) == (1, 0, 0)
        assert look(os.getpid(), tmp_path, 0.0, 0).processes == own.processes + 1


def test_spare_cgroups_are_no_growth_but_leaked_ones_are(tmp_path: Path) -> None:
    """As seen on a server at rest: 14 of the memory controller, and 14 to 18 of another one."""
    engines = [tmp_path / name / f"cellwall.host-boot-{os.getpid()}-1" for name in ("mem", "pids")]
    for engine in engines:
        engine.mkdir(parents=True)
        for number in range(14):
            (engine / str(number)).mkdir()
    memory, processes = engines
    (memory / "memory.limit_in_bytes").touch()
    counts = [cgroups(os.getpid(), str(tmp_path))]
    for number in range(6):
        (processes / f"spare{number}").mkdir()
        counts.append(cgroups(os.getpid(), str(tmp_path)))
    assert counts == [30, 30, 30, 30, 30, 31, 32]
    (memory / "left").mkdir()
    assert cgroups(os.getpid(), str(tmp_path)) > 32


def test_cgroups_of_one_hierarchy_all_count(tmp_path: Path) -> None:
    """In a tree of version 2 each directory has the memory controller, so none is a spare one."""
    engine = tmp_path / f"cellwall.host-boot-{os.getpid()}-1"
    for number in range(6):
        (engine / str(number)).mkdir(parents=True)
    (engine / "memory.max").touch()
    assert cgroups(os.getpid(), str(tmp_path)) == 7
