"""Policies of packages out of plain values: what is not understood is refused, with the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from cellwall.model.errors import UsageError
from cellwall.model.packages import PackagePolicy, PackageRule, normal_name


def test_default_allows_nothing_and_an_absent_list_everything() -> None:
    assert PackagePolicy() == PackagePolicy.of({}) == PackagePolicy(registries=(), allow=None)
    assert PackagePolicy.of({"allow": []}).allow == ()
    assert PackagePolicy.of({"allow": None}).allow is None


def test_policy_goes_through_json_unchanged() -> None:
    policy = PackagePolicy.of(
        {
            "registries": ["npm", "pypi"],
            "allow": ["numpy>=1.20,<2", "pypi:torch==2.*", "npm:@scope/*", "Foo_Bar"],
            "deny": ["pypi:x~=1.4", "npm:left-pad==1.3.0-rc.1"],
            "min_age_days": 7.5,
            "allow_sdists": True,
            "largest_file_mb": 5,
        }
    )
    assert PackagePolicy.of(json.loads(json.dumps(policy.plain()))) == policy
    assert PackagePolicy.of(policy) is policy


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "no policy"),
        (["pypi"], "no policy"),
        ({"registry": "pypi"}, "'registry'"),
        ({"registries": "pypi"}, "registries"),
        ({"registries": ["pypi", "pypi"]}, "registries"),
        ({"registries": ["conda"]}, "registries"),
        ({"registries": [1]}, "registries"),
        ({"allow": "numpy"}, "allow"),
        ({"allow": {"numpy": 1}}, "allow"),
        ({"deny": None}, "deny"),
        ({"deny": ["x"] * 10_001}, "deny"),
        ({"min_age_days": -1}, "min_age_days"),
        ({"min_age_days": float("nan")}, "min_age_days"),
        ({"min_age_days": "7"}, "min_age_days"),
        ({"min_age_days": True}, "min_age_days"),
        ({"largest_file_mb": 0}, "largest_file_mb"),
        ({"largest_file_mb": 1.5}, "largest_file_mb"),
        ({"largest_page_mb": 1e9}, "largest_page_mb"),
        ({"allow_sdists": "no"}, "allow_sdists"),
    ],
    ids=str,
)
def test_mistake_is_named_with_its_remedy(value: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        PackagePolicy.of(value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-r file",
        "--index-url=x",
        "numpy;python_version<'3'",
        "numpy[extra]",
        "numpy @ https://example.org/x.whl",
        "git+https://example.org/x",
        "../x",
        "numpy==",
        "numpy>=1,",
        "numpy>=1,,<2",
        "numpy=1",
        "numpy===1",
        "numpy>=1.*",
        "numpy ==1 || ==2",
        "pypi:numpy~=1",
        "npm:left~=1.0",
        "npm:left==1.x",
        "conda:numpy",
        "numpy==1.0rc1",
        "n\u0443mpy",
        "numpy\n",
        "numpy\x00",
        "a*b*c*d",
        "x" * 301,
        7,
        None,
    ],
    ids=ascii,
)
def test_rule_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="rule"):
        PackageRule.of(text)


@pytest.mark.parametrize(
    ("text", "registry", "name", "expected"),
    [
        ("Foo_Bar", "pypi", "foo-bar", True),
        ("Foo_Bar", "npm", "foo-bar", False),
        ("Foo_Bar", "npm", "Foo_Bar", True),
        ("pypi:foo", "npm", "foo", False),
        ("npm:foo", "pypi", "foo", False),
        ("foo", "pypi", "food", False),
        ("foo*", "pypi", "food", True),
        ("*", "npm", "@scope/x", False),
        ("@scope/*", "npm", "@scope/x", True),
        ("@*/x", "npm", "@scope/x", True),
        ("foo.*", "pypi", "foo-x", True),
        ("foo.", "pypi", "foox", False),
    ],
)
def test_rule_is_about_the_names_it_says(
    text: str, registry: Any, name: str, expected: bool
) -> None:
    assert PackageRule.of(text).names(registry, name) is expected


_VERSIONS = st.from_regex(
    r"([0-9]!)?[0-9]{1,3}(\.[0-9]{1,3}){0,2}((a|b|rc)[0-9])?(\.post[0-9])?(\.dev[0-9])?",
    fullmatch=True,
)


@given(st.sampled_from([">=", "<=", "==", "!=", "~=", "<", ">"]), _VERSIONS)
def test_clause_that_is_taken_is_one_of_pythons_own(operator: str, version: str) -> None:
    try:
        rule = PackageRule.of(f"pypi:x{operator}{version}")
    except UsageError:
        assert operator == "~="
    else:
        assert rule.clauses == ((operator, version),)
        SpecifierSet(operator + version)


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        rule = PackageRule.of(text)
    except UsageError:
        return
    assert PackageRule.of(str(rule)) == rule
    for operator, version in rule.clauses:
        if rule.registry != "npm":
            SpecifierSet(operator + version)


def test_normal_names_are_those_of_pythons_index() -> None:
    assert normal_name("Foo__Bar.-baz") == "foo-bar-baz"
