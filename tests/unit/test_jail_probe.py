"""What `doctor` makes of a host's settings, as text: no host has all of them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from cellwall.jail import facts, probe
from cellwall.model.errors import HostUnsupported


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
    monkeypatch.setattr(facts, "_CORE_PATTERN", str(pattern))
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
    assert facts.core_limit() == limit
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
        facts.core_limit()
    assert "ulimit -Hc" in str(caught.value)
    (found,) = probe._core_limit()
    assert (found.grade, found.remedy) == ("FAIL", caught.value.remedy)
