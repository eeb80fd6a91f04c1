"""Rules: what a policy says about a release, and that no spelling of a version gets past."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.egress.packages.listings import semver, sentences
from cellwall.egress.packages.listings.listing import Release
from cellwall.egress.packages.rules import Judge
from cellwall.model.packages import PackagePolicy

NOW = 1_800_000_000.0
DAY_S = 86_400.0


def judged(policy: dict[str, Any], version: str = "1.0", **more: Any) -> str | None:
    of = {"registry": "pypi", "name": "dep", "is_source": False, "uploaded_at": None, "size": None}
    release = Release(**{**of, "version": version, **more})
    made = PackagePolicy.of({"registries": ["pypi", "npm"], **policy})
    return Judge(made, release.registry, release.name).refusal(release, NOW)


@pytest.mark.parametrize(
    ("policy", "version", "is_refused"),
    [
        ({}, "1.0", False),
        ({"deny": ["dep"]}, "1.0", True),
        ({"deny": ["other"]}, "1.0", False),
        ({"deny": ["d*"]}, "1.0", True),
        ({"deny": ["dep<2"]}, "1.9rc1", True),
        ({"deny": ["dep<2"]}, "2.0", False),
        ({"deny": ["dep==1.0"]}, "1.0+local", True),
        ({"deny": ["dep>=1,<2"]}, "1.5.dev3", True),
        ({"deny": ["pypi:dep==1.*"]}, "1.7", True),
        ({"deny": ["npm:dep"]}, "1.0", False),
        ({"allow": []}, "1.0", True),
        ({"allow": ["dep"]}, "1.0", False),
        ({"allow": ["dep>=2"]}, "1.0", True),
        ({"allow": ["dep>=1", "other"]}, "1.0rc1", True),
        ({"allow": ["dep"], "deny": ["dep==1.0"]}, "1.0", True),
        ({"registries": ["npm"]}, "1.0", True),
        ({"registries": []}, "1.0", True),
    ],
)
def test_lists_of_python_packages(policy: dict[str, Any], version: str, is_refused: bool) -> None:
    assert (judged(policy, version) is not None) is is_refused


@pytest.mark.parametrize(
    ("deny", "version", "is_refused"),
    [
        ("dep<2", "1.9.9", True),
        ("dep<2", "2.0.0-rc.1", True),
        ("dep<2", "2.0.0", False),
        ("npm:dep>=1.0.0-beta.2", "1.0.0-beta.11", True),
        ("npm:dep>=1.0.0-beta.2", "1.0.0-alpha.9", False),
        ("dep==1.2", "1.2.0", True),
        ("dep==1.2.0", "1.2.0+build.7", True),
        ("dep!=1.2", "1.2.0", False),
        ("pypi:dep", "1.0.0", False),
    ],
)
def test_lists_of_npm_packages(deny: str, version: str, is_refused: bool) -> None:
    assert (judged({"deny": [deny]}, version, registry="npm") is not None) is is_refused


@pytest.mark.parametrize(
    ("uploaded_at", "is_refused"),
    [(NOW - 8 * DAY_S, False), (NOW - 6 * DAY_S, True), (NOW + DAY_S, True), (None, True)],
    ids=["old", "young", "of tomorrow", "unknown"],
)
def test_age(uploaded_at: float | None, is_refused: bool) -> None:
    found = judged({"min_age_days": 7}, uploaded_at=uploaded_at)
    assert (found is not None) is is_refused
    assert judged({}, uploaded_at=uploaded_at) is None


@pytest.mark.parametrize(
    ("allow", "within", "is_refused"),
    [
        (["dep"], ["dep"], False),
        (["dep"], ["other"], True),
        (["other"], ["dep"], True),
        (None, ["other"], True),
        (None, [], True),
        (None, ["dep"], False),
        (["dep"], None, False),
    ],
)
def test_both_lists_have_to_allow(
    allow: list[str] | None, within: list[str] | None, is_refused: bool
) -> None:
    policy = {"allow": allow, "within": within}
    assert (judged(policy) is not None) is is_refused


def test_source_and_size() -> None:
    assert judged({}, is_source=True) == sentences.ONLY_SOURCE
    assert judged({"allow_sdists": True}, is_source=True) is None
    assert judged({"largest_file_mb": 1}, size=1024**2 + 1) == sentences.too_large(1)
    assert judged({"largest_file_mb": 1}, size=1024**2) is None


def test_versions_of_npm_are_in_the_order_of_their_standard() -> None:
    early = ["1", "alpha", "alpha.1", "alpha.beta", "beta", "beta.2", "beta.11", "rc.1"]
    ordered = ["0.9.0", *(f"1.0.0-{each}" for each in early), "1.0.0", "1.0.1", "1.2.0", "1.10.0"]
    as_text = sorted(ordered)
    assert as_text != ordered
    assert sorted(as_text, key=semver.order) == ordered
    assert semver.is_early("1.0.0-rc.1")
    assert not semver.is_early("1.0.0+x-y")


@given(st.text())
def test_any_reason_is_one_short_line_of_ascii(text: str) -> None:
    cleaned = sentences.cleaned(text)
    assert cleaned.isascii()
    assert cleaned.isprintable()
    assert 0 < len(cleaned) <= 300


def test_reasons_of_versions_are_grouped() -> None:
    several = {"3": "b", "2": "a", "1": "a"}
    assert sentences.of_versions("dep", several) == "dep is refused; 3: b; 2, 1: a"
    many = {str(n): "a" for n in range(9)}
    assert sentences.of_versions("dep", many) == (
        "dep 0, 1, 2, 3, 4 and 4 more versions are refused: a"
    )
    assert sentences.of_versions("dep", {"1": "a"}) == "dep 1 is refused: a"


@pytest.mark.parametrize(
    ("policy", "is_refused"),
    [
        ({}, False),
        ({"allow": ["dep"]}, False),
        ({"allow": ["dep>=2"]}, False),
        ({"allow": ["d*"], "within": ["*p"]}, False),
        ({"allow": ["dep"], "deny": ["dep<2"]}, False),
        ({"deny": ["npm:dep"]}, False),
        ({"allow": []}, True),
        ({"allow": ["other"]}, True),
        ({"within": ["npm:dep"]}, True),
        ({"allow": ["dep"], "within": ["other"]}, True),
        ({"allow": ["other"], "within": ["dep"]}, True),
        ({"allow": ["dep"], "deny": ["d*"]}, True),
    ],
)
def test_name_of_which_nothing_can_be_allowed(policy: dict[str, Any], is_refused: bool) -> None:
    made = PackagePolicy.of({"registries": ["pypi", "npm"], **policy})
    why = Judge(made, "pypi", "dep").refusal_of_name()
    assert (why is not None) is is_refused
    assert not is_refused or judged(policy) == why, "the same reason as of each release"
