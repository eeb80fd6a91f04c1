"""Allow-list of the `process` runtime: paths are resolved before they are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.linux.removal import remove_tree
from cellwall.model.errors import UsageError
from cellwall.runtimes.process.rules import PathRules


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def rules(home: Path) -> PathRules:
    return PathRules.of(str(home), "/usr/bin/python3", "/usr/bin:/bin")


@pytest.mark.parametrize("program", ["bash", "/bin/bash", "python3", "/usr/bin/../bin/bash"])
def test_interpreter_is_allowed_however_it_is_named(rules: PathRules, program: str) -> None:
    rules.check_program(program, None)


def test_other_program_is_refused(rules: PathRules) -> None:
    with pytest.raises(UsageError, match="not an allowed interpreter"):
        rules.check_program("/usr/bin/env", None)


def test_link_to_another_program_is_refused(rules: PathRules, home: Path) -> None:
    (home / "bash").symlink_to("/usr/bin/env")
    with pytest.raises(UsageError):
        rules.check_program("./bash", None)


def test_program_of_the_sandbox_itself_is_allowed(rules: PathRules, home: Path) -> None:
    (home / "built").write_text("#!/bin/sh\n")
    rules.check_program("./built", None)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
def test_path_outside_is_refused(rules: PathRules, path: str) -> None:
    with pytest.raises(UsageError, match="outside"):
        rules.check_request("file_read", {"path": path})


def test_link_that_leads_outside_is_refused(rules: PathRules, home: Path) -> None:
    (home / "link").symlink_to("/etc")
    with pytest.raises(UsageError, match="outside"):
        rules.check_request("file_read", {"path": "link/passwd"})


@pytest.mark.parametrize("cwd", ["/etc", "..", "a/../.."])
def test_program_is_not_started_outside(rules: PathRules, cwd: str) -> None:
    for program in ("bash", "./built"):
        with pytest.raises(UsageError, match="outside"):
            rules.check_request("start", {"argv": [program], "cwd": cwd})


@pytest.mark.parametrize("target", ["/tmp/x", "../x"])
def test_nothing_is_moved_outside(rules: PathRules, target: str) -> None:
    with pytest.raises(UsageError, match="outside"):
        rules.check_request("file_move", {"path": "a", "target": target})


def test_path_inside_is_allowed(rules: PathRules) -> None:
    rules.check_request("file_write", {"path": "a/b/c"})
    rules.check_request("file_move", {"path": "a", "target": "b"})


def test_sibling_with_the_same_beginning_is_outside(rules: PathRules, home: Path) -> None:
    with pytest.raises(UsageError):
        rules.check_request("file_read", {"path": f"{home}-other/x"})


def test_remove_tree_takes_depth_links_and_closed_directories(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    top = current = tmp_path / "top"
    current.mkdir()
    (top / "link").symlink_to(outside)
    import os

    directory = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    (top / "closed").mkdir(mode=0)
    (top / ".removing-1-0").mkdir()
    remove_tree(str(top))
    assert not top.exists()
    assert (outside / "kept").read_text() == "kept"
