"""What `image=` may name, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.images.reference import Archive, InDaemon, InRegistry, parse
from cellwall.model.errors import UsageError

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("./task.tar", Archive(Path("task.tar"))),
        ("/images/task", Archive(Path("/images/task"))),
        ("../task.tar", Archive(Path("../task.tar"))),
        ("docker://task", InDaemon("task:latest")),
        ("docker://team/task:2", InDaemon("team/task:2")),
        ("python", InRegistry("", "python")),
        ("python:3.12-slim", InRegistry("", "python", "3.12-slim")),
        ("team/app", InRegistry("", "team/app")),
        ("localhost/app:1", InRegistry("localhost", "app", "1")),
        ("registry.example:5000/team/app", InRegistry("registry.example:5000", "team/app")),
        (f"registry.example/app@{DIGEST}", InRegistry("registry.example", "app", "latest", DIGEST)),
        (f"app:1@{DIGEST}", InRegistry("", "app", "1", DIGEST)),
    ],
)
def test_names(text: str, meant: object) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        *("", "\0", "Python", "a//b", "/../\0", "-x", "--rm", "a b", "a:b:c", "a@sha256:12"),
        *("a@md5:" + "a" * 32, "https://registry.example/app", "user:pass@registry.example/app"),
        *("registry.example/../app", "registry.example:99999999/app", "a:" + "b" * 129, "a/-b"),
        *("pythоn", "a" * 300, "docker://", "docker:///etc/passwd", 7, None),
    ],
)
def test_what_is_no_name(text: object) -> None:
    with pytest.raises(UsageError, match="image"):
        parse(text)
