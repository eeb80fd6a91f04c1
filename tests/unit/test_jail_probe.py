"""What `doctor` makes of a host's settings, as text: no host has all of them."""

from __future__ import annotations

import pytest

from cellwall.jail import probe


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
