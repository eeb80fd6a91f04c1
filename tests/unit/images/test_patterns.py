"""Patterns of the operator, visits of registries: what fits, and what never does."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from cellwall.images.patterns import check_patterns, is_allowed
from cellwall.images.reference import parse
from cellwall.images.visits import Visits, is_public
from cellwall.model.errors import UsageError

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("python:*", ["python", "python:3.12", "docker.io/library/python:3", f"python@{DIGEST}"]),
        ("python", ["python:3.12", f"python@{DIGEST}"]),
        ("python:3.*", ["python:3.12-slim"]),
        ("r.example:5000/team/*", ["r.example:5000/team/app:1", "r.example:5000/team/a/b"]),
        (f"python@{DIGEST}", [f"python@{DIGEST}", f"python:3@{DIGEST}"]),
        ("*", ["python", "r.example/team/app:1", f"python@{DIGEST}"]),
        ("docker://task", ["docker://task", "docker://task:latest"]),
        (DIGEST, [DIGEST]),
    ],
)
def test_pattern_permits(pattern: str, names: list[str]) -> None:
    check_patterns([pattern], "settings")
    assert all(is_allowed(parse(name), [pattern]) for name in names)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("python:*", ["pythons:1", "evil.example/python:1", "me/python:1", "docker://python"]),
        ("python:3.*", ["python:2.7", f"python@{DIGEST}", f"python:3.1@{DIGEST}", "python:34"]),
        ("r.example:5000/team/*", ["r.example/team/app", "r.example:5000/teams/app", "team/app"]),
        ("*", ["docker://task", "/etc/passwd", "./task.tar", "../x", DIGEST]),
        ("docker://task", ["task", "docker://task:2", "docker://tasks"]),
    ],
)
def test_pattern_does_not_permit(pattern: str, names: list[str]) -> None:
    assert not any(is_allowed(parse(name), [pattern]) for name in names)


@pytest.mark.parametrize(
    "text", ["", "/task.tar", "./task.tar", "docker://*", "*.example/x", "*://x", "Python", "a b"]
)
def test_text_that_is_no_pattern(text: str) -> None:
    with pytest.raises(UsageError, match="no pattern"):
        check_patterns([text], "settings")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("fe80::1", False),
        ("224.0.0.1", False),
    ],
)
def test_addresses_that_are_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


@pytest.mark.parametrize(
    ("own", "other", "may"),
    [
        ("93.184.216.34", "93.184.216.35", True),
        ("93.184.216.34", "10.0.0.1", False),
        ("93.184.216.34", "169.254.169.254", False),
        ("10.0.0.1", "10.0.0.2", True),
        ("10.0.0.1", "169.254.169.254", False),
        ("10.0.0.1", "[::ffff:169.254.169.254]", False),
    ],
)
def test_where_a_registry_may_lead(own: str, other: str, may: bool) -> None:
    visits = Visits(own, is_public)
    found = asyncio.run(visits.address_of(urlsplit(f"https://{other}/x")))
    assert (found is not None) is may
