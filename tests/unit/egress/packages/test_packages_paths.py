"""Targets of requests: each asks for one thing that can be named safely, or for nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.egress.packages.listings.paths import (
    PackageFile,
    Packument,
    SimplePage,
    ask_of,
    npm_path,
    npm_target,
    python_target,
)

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/simple/Foo_Bar/", SimplePage("foo-bar")),
        ("/simple/foo", SimplePage("foo")),
        ("/simple/foo/?format=json", SimplePage("foo")),
        ("http://packages.test:80/simple/foo/", SimplePage("foo")),
        ("/npm/left-pad", Packument("left-pad")),
        ("/npm/@scope%2fname", Packument("@scope/name")),
        ("/npm/@scope%2Fname", Packument("@scope/name")),
        ("/npm/@scope/name", Packument("@scope/name")),
        (
            f"/files/pypi/{DIGEST}/foo_bar-1.0-py3-none-any.whl",
            PackageFile("pypi", "foo-bar", "1.0", DIGEST, "foo_bar-1.0-py3-none-any.whl"),
        ),
        (
            f"/files/pypi/{DIGEST}/foo-1.0-py3-none-any.whl.metadata",
            PackageFile("pypi", "foo", "1.0", DIGEST, "foo-1.0-py3-none-any.whl", True),
        ),
        (
            "/files/pypi/unhashed/foo-1.0%2Blocal.tar.gz",
            PackageFile("pypi", "foo", "1.0+local", None, "foo-1.0+local.tar.gz"),
        ),
        (
            "/npm/@scope%2fname/-/name-1.0.0-rc.1.tgz",
            PackageFile("npm", "@scope/name", "1.0.0-rc.1", None, "@scope/name@1.0.0-rc.1.tgz"),
        ),
        (
            "/npm/npm/left/-/left-1.0.0.tgz",  # npm 9, told to replace the hosts of links
            PackageFile("npm", "left", "1.0.0", None, "left@1.0.0.tgz"),
        ),
        (
            "/npm/npm/-/npm-9.2.0.tgz",
            PackageFile("npm", "npm", "9.2.0", None, "npm@9.2.0.tgz"),
        ),
        (
            "/npm/@scope/name/-/name-1.0.0.tgz",
            PackageFile("npm", "@scope/name", "1.0.0", None, "@scope/name@1.0.0.tgz"),
        ),
    ],
)
def test_target_asks_for(target: str, expected: object) -> None:
    assert ask_of(target) == expected


@pytest.mark.parametrize(
    "target",
    [
        "",
        "*",
        "/",
        "/simple/",
        "/simple//",
        "/simple/../secret/",
        "/simple/%2e%2e/",
        "/simple/a%2Fb/",
        "/simple/a%00/",
        "/simple/a%0d%0aSet-Cookie:x/",
        "/simple/%D0%B0bc/",
        "/simple/-a/",
        "/simple/a/b/",
        f"/simple/{'a' * 129}/",
        f"/files/pypi/{'g' * 64}/a-1.0-py3-none-any.whl",
        "/files/pypi/abcd/a-1.0-py3-none-any.whl",
        "/files/pypi/../a-1.0-py3-none-any.whl",
        f"/files/pypi/{DIGEST}/..",
        f"/files/pypi/{DIGEST}/%2e%2e%2fa-1.0-py3-none-any.whl",
        f"/files/pypi/{DIGEST}/a-1.0.exe",
        f"/files/pypi/{DIGEST}/a.whl",
        f"/files/pypi/{DIGEST}/a-{'9' * 300}.tar.gz",
        f"/files/conda/{DIGEST}/a-1.0-py3-none-any.whl",
        f"/files/npm/{DIGEST}/name-1.0.0.tgz",
        "/npm/name/-/..%2f..%2fname-1.0.0.tgz",
        "/npm/name/-/name-1.0.tgz",
        "/npm/../-/..-1.0.0.tgz",
        "/npm/",
        "/npm/..",
        "/npm/.hidden",
        "/npm/@scope",
        "/npm/@scope%2f..%2fx",
        "/npm/a/b",
        "/npm/a%5cb",
        "/npm/-/v1/search?text=x",
        "/npm/-/npm/v1/security/advisories/bulk",
        "/npm/name/-/other-1.0.0.tgz",
        "/npm/name/-/name-1.0.0.tgz/x",
        "https://elsewhere/simple/a/",
        "/simple/\xe4/",
        "/simple/a b/",
        "/simple/" + "a" * 3000,
    ],
)
def test_target_that_asks_for_nothing(target: str) -> None:
    assert ask_of(target) is None


NAME = re.compile(r"(@[A-Za-z0-9._~-]+/)?[A-Za-z0-9._~-]+")


@given(st.one_of(st.text(), st.from_regex(r"/(simple|npm|files/(pypi|npm)/unhashed)/.*")))
def test_any_target_asks_for_a_safe_name_or_for_nothing(target: str) -> None:
    ask = ask_of(target)
    if ask is not None:
        assert NAME.fullmatch(ask.name)
        assert ".." not in ask.name.split("/")


def test_targets_of_our_pages_are_understood() -> None:
    for file_name in ("a-1.0+x.1-py3-none-any.whl", "a-1!1.0.tar.gz"):
        for digest in (DIGEST, None):
            ask = ask_of(python_target(digest, file_name))
            assert isinstance(ask, PackageFile)
            assert (ask.file_name, ask.digest) == (file_name, digest)
    ask = ask_of(npm_target("@scope/name", "1.0.0+build"))
    assert isinstance(ask, PackageFile)
    assert (ask.name, ask.version) == ("@scope/name", "1.0.0+build")


def test_scope_is_one_segment_below_a_registry() -> None:
    assert npm_path("@scope/name") == "@scope%2Fname"
