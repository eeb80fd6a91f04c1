"""Versions of what we rely on: told, and a package older than we ask for is named."""

from __future__ import annotations

from importlib import metadata

import pytest

from cellwall.apps import versions


def test_own_environment_is_as_new_as_asked_for() -> None:
    found = versions.findings()
    assert [(each.feature, each.grade) for each in found] == [("versions", "PASS")]
    assert metadata.version("cellwall") in found[0].detail


@pytest.mark.parametrize(
    ("installed", "is_old"),
    [("0.14.0", True), ("0.9", True), ("0.16.0", False), ("0.16", False), ("1.0rc1", False)],
)
def test_an_old_package_is_named_with_the_remedy(
    installed: str, is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: installed if n == "h11" else real(n))
    old = [each for each in versions.findings() if each.grade == "CAUTION"]
    assert [each.feature for each in old] == (["h11"] if is_old else [])
    if is_old:
        assert "h11>=0.16" in old[0].remedy


def test_a_missing_extra_is_not_old(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "h11":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert [each.feature for each in versions.findings()] == ["versions"]
