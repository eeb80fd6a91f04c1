"""What one sandbox may take of counts that it shares with all others of its user."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.jail.inspect import shared_counts
from cellwall.model.errors import HostUnsupported
from cellwall.model.limits import Limits


@pytest.fixture(autouse=True)
def watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that has five million watches for a user."""
    path = tmp_path / "max_user_watches"
    path.write_text("5000000\n")
    monkeypatch.setattr(shared_counts, "_WATCHES", path)


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (Limits(open_files=1024, processes=2), "with 1024 open files"),
        (Limits(open_files=700, processes=1000), "epoll watches"),
    ],
)
def test_limits_that_would_starve_others_are_refused(limits: Limits, what: str) -> None:
    with pytest.raises(HostUnsupported, match=what) as caught:
        shared_counts.check(limits)
    assert "doctor" in (caught.value.remedy or "")


@pytest.mark.parametrize("limits", [Limits(), Limits(open_files=768, processes=11)])
def test_usual_limits_pass(limits: Limits) -> None:
    shared_counts.check(limits)
