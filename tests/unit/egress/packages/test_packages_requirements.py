"""Requirement lines of a caller: names and versions; no options, places or look-alikes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from cellwall.egress.packages.requirements import check_requirements
from cellwall.model.errors import UsageError


def test_plain_requirements_pass_in_a_normal_form() -> None:
    lines = ["requests", " pandas[excel] >= 2, <3 ", 'tomli; python_version < "3.11"', "x==1.0.*"]
    assert check_requirements(lines) == (
        "requests",
        "pandas[excel]<3,>=2",
        'tomli; python_version < "3.11"',
        "x==1.0.*",
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-r other.txt", "option"),
        ("--index-url=https://evil.test/", "option"),
        ("requests --index-url https://evil.test/", "option"),
        ("requests==1 --hash=sha256:00", "option"),
        ("requests\n--index-url https://evil.test/", "control"),
        ("requests\r", "control"),
        ("requests\x00", "control"),
        ("requests\u2028-r x", "control"),
        ("requ\u0435sts", "ASCII"),
        ("https://evil.test/x.whl", "URL"),
        ("git+https://evil.test/x", "URL"),
        ("git+ssh://git@evil.test/x", "URL"),
        ("file:///etc/passwd", "URL"),
        ("file:x", "URL"),
        ("x @ https://evil.test/x.whl", "URL"),
        ("x@file:///x.whl", "URL"),
        ("x @ ./x.whl", "place"),
        ("/tmp/x.whl", "path"),
        ("./x", "path"),
        ("../x", "path"),
        (".", "path"),
        ("~/x", "path"),
        ("dir/x", "path"),
        ("x-1.0-py3-none-any.whl", "file"),
        ("x.tar.gz", "file"),
        ("${HOME}", "variable"),
        ("x \\", "continuation"),
        ("# nothing", "comment"),
        ("", "empty"),
        ("   ", "empty"),
        ("x===1.0", "==="),
        ("x==", "x=="),
        ("x; python_version", "marker"),
        ("x; evil_name == '1'", "marker"),
        ("x; python_version < ", "marker"),
        ("x y", "x y"),
        ("x" * 1001, "characters"),
        (7, "text"),
        (None, "text"),
    ],
    ids=ascii,
)
def test_what_is_no_plain_requirement_is_refused_with_its_reason(line: object, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        check_requirements(["requests", line])
    assert caught.value.remedy
    assert str(caught.value).isprintable()


def test_one_text_and_too_many_are_refused() -> None:
    with pytest.raises(UsageError):
        check_requirements("requests")
    with pytest.raises(UsageError):
        check_requirements(["x"] * 1001)
    assert len(check_requirements(["x"] * 1000)) == 1000


@given(st.text(max_size=60))
def test_any_line_is_a_requirement_by_name_or_refused(line: str) -> None:
    try:
        (found,) = check_requirements([line])
    except UsageError:
        return
    again = Requirement(found)
    assert again.url is None
    assert found.isascii()
    assert found.isprintable()
    assert not found.startswith("-")
