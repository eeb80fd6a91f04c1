"""What `doctor` makes of a host's settings, as text: no host has all of them."""

from __future__ import annotations

import inspect
import os
import resource
import signal
from functools import partial
from pathlib import Path

import pytest

from cellwall.jail.inspect import host_facts, probe
from cellwall.jail.inspect.probe_counts import Counts, judge
from cellwall.linux import trial
from cellwall.model.errors import HostUnsupported


def test_what_a_first_answer_leaves_out_never_finds_a_fault() -> None:
    assert "FAIL" in inspect.getsource(probe._machine)  # the control
    assert [each.__name__ for each in probe.NEVER_FAULTS if "FAIL" in inspect.getsource(each)] == []


@pytest.mark.parametrize(
    ("pattern", "grade"),
    [
        ("core\n", "PASS"),
        ("|/usr/lib/systemd/systemd-coredump %P\n", "PASS"),
        ("@/run/systemd/coredump.socket\n", "CAUTION"),
        ("@@/run/systemd/coredump.socket\n", "CAUTION"),
    ],
)
def test_core_pattern_is_a_caution_where_no_limit_stops_it(pattern: str, grade: str) -> None:
    found = probe.core_pattern(pattern)
    assert (found.grade, bool(found.remedy)) == (grade, grade == "CAUTION")


def _host(monkeypatch: pytest.MonkeyPatch, pattern: Path, hard: int) -> None:
    monkeypatch.setattr(host_facts, "_CORE_PATTERN", str(pattern))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (0, hard))


@pytest.mark.parametrize(
    ("pattern", "hard", "limit"),
    [
        ("core", resource.RLIM_INFINITY, 1),
        ("|/handler", resource.RLIM_INFINITY, 1),
        ("|/handler", 1, 1),
        ("core", 0, 0),
        ("/var/crash/core.%p", 0, 0),
    ],
)
def test_core_limit_is_one_where_that_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, hard: int, limit: int
) -> None:
    (tmp_path / "pattern").write_text(pattern + "\n")
    _host(monkeypatch, tmp_path / "pattern", hard)
    assert host_facts.core_limit() == limit
    assert [found.grade for found in probe._core_limit()] == ["PASS"]


@pytest.mark.parametrize("pattern", ["|/usr/lib/systemd/systemd-coredump %P\n", None])
def test_handler_of_crashes_that_nothing_stops_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str | None
) -> None:
    """None: hidden by a masked /proc, so that it may be anything."""
    if pattern is not None:
        (tmp_path / "pattern").write_text(pattern)
    _host(monkeypatch, tmp_path / "pattern", 0)
    with pytest.raises(HostUnsupported, match="RLIMIT_CORE") as caught:
        host_facts.core_limit()
    assert "ulimit -Hc" in str(caught.value)
    (found,) = probe._core_limit()
    assert (found.grade, found.remedy) == ("FAIL", caught.value.remedy)


PLENTY = Counts(
    open_files=65_536,
    processes=32_768,
    inotify_instances=8192,
    user_namespaces=65_536,
)


def grades(counts: Counts) -> dict[str, str]:
    return {found.feature: found.grade for found in judge(counts)}


def test_a_host_with_plenty_passes_every_count() -> None:
    assert set(grades(PLENTY).values()) == {"PASS"}
    assert not any(found.remedy for found in judge(PLENTY))


@pytest.mark.parametrize(
    ("name", "value", "feature", "grade"),
    [
        ("open_files", 1024, "open files", "CAUTION"),
        ("open_files", 255, "open files", "FAIL"),
        ("processes", 512, "processes", "CAUTION"),
        ("inotify_instances", 128, "fs.inotify.max_user_instances", "CAUTION"),
        ("user_namespaces", 100, "user.max_user_namespaces", "CAUTION"),
    ],
)
def test_scarcity_is_graded_and_has_a_remedy(
    name: str, value: int, feature: str, grade: str
) -> None:
    counts = PLENTY._replace(**{name: value})
    found = next(each for each in judge(counts) if each.feature == feature)
    assert (found.grade, bool(found.remedy)) == (grade, grade != "PASS")
    others = {k: v for k, v in grades(counts).items() if k != feature}
    assert set(others.values()) == {"PASS"}


def test_what_a_container_hides_is_not_judged() -> None:
    hidden = PLENTY._replace(inotify_instances=None, user_namespaces=None)
    assert set(grades(hidden)) == {"open files", "processes"}


def test_counts_of_this_process_are_the_kernels() -> None:
    counts = Counts.of_this_process()
    assert counts.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert 0 < counts.processes <= int(Path("/proc/sys/kernel/pid_max").read_text())


def _raised(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("no"), "no"),
        (ValueError("odd"), "ValueError('odd')"),
        (KeyboardInterrupt(), "KeyboardInterrupt()"),
    ],
)
def test_trial_never_returns_whatever_it_raises(error: BaseException, said: str) -> None:
    """One that did would go on as a second embedder, with the first one's descriptors."""
    here = os.getpid()
    try:
        assert trial.trial(partial(_raised, error)) == said
    finally:
        if os.getpid() != here:
            os._exit(9)  # the guard is off: the test fails in the one that waits


def test_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_TRIAL_S", 0.5)
    heard, told = os.pipe()

    def hang() -> None:
        os.write(told, str(os.getpid()).encode())
        signal.pause()

    assert "did not end" in trial.trial(hang)
    with pytest.raises(ProcessLookupError):
        os.kill(int(os.read(heard, 20)), 0)
    os.close(heard)
    os.close(told)
