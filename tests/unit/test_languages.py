"""The language registry, and finding tools where a jail would show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.languages import registry
from cellwall.languages.language import Language
from cellwall.languages.tools import find_tool
from cellwall.model.errors import NotFound


def _tool(root: Path, path: str, mode: int = 0o755) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("name", "expected"), [("python", "python"), ("JS", "javascript"), ("sh", "bash")]
)
def test_find_knows_names_and_aliases(name: str, expected: str) -> None:
    assert registry.find(name).name == expected


def test_find_names_the_known_languages_when_it_fails() -> None:
    with pytest.raises(NotFound, match=r"cobol.*python, bash, javascript"):
        registry.find("cobol")


def test_extension_finds_the_language() -> None:
    assert registry.by_extension(".MJS") is registry.find("javascript")
    assert registry.by_extension(".txt") is None


def test_command_puts_the_file_in_its_place_and_arguments_after() -> None:
    command = registry.find("bash").command("/home/user/main.sh", ["{file}", "-x"])
    assert command == ["bash", "/home/user/main.sh", "{file}", "-x"]


def test_two_languages_cannot_share_a_name() -> None:
    python = registry.find("python")
    with pytest.raises(ValueError, match="belongs to python already"):
        registry._index((python, python), by="name")


@pytest.mark.parametrize("language", registry.LANGUAGES.values(), ids=lambda entry: entry.name)
def test_entry_is_consistent(language: Language) -> None:
    assert language.run.count("{file}") == 1
    assert language.version[0] == language.tool
    assert Path(language.file_name).suffix == language.extensions[0]


def test_bash_is_detected_with_its_version() -> None:
    found = registry.detect(registry.find("bash"))
    assert found is not None
    assert found.path.endswith("/bin/bash")
    assert "bash" in found.version


def test_tool_is_found_below_the_given_root(tmp_path: Path) -> None:
    _tool(tmp_path, "/usr/bin/node")
    assert find_tool("node", str(tmp_path)) == "/usr/bin/node"


def test_tool_behind_alternatives_is_found(tmp_path: Path) -> None:
    _tool(tmp_path, "/usr/lib/nodejs/node")
    for link, target in [
        ("/usr/bin/node", "/etc/alternatives/node"),
        ("/etc/alternatives/node", "/usr/lib/nodejs/node"),
    ]:
        (tmp_path / link.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link.lstrip("/")).symlink_to(target)
    assert find_tool("node", str(tmp_path)) == "/usr/bin/node"


def test_tool_outside_what_a_jail_shows_is_absent(tmp_path: Path) -> None:
    _tool(tmp_path, "/opt/node/bin/node")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/node").symlink_to("/opt/node/bin/node")
    assert find_tool("node", str(tmp_path)) is None


@pytest.mark.parametrize("mode", [0o644, 0o750])
def test_tool_that_a_foreign_uid_cannot_run_is_absent(tmp_path: Path, mode: int) -> None:
    _tool(tmp_path, "/usr/bin/node", mode)
    assert find_tool("node", str(tmp_path)) is None


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/node").symlink_to("nodejs")
    (tmp_path / "usr/bin/nodejs").symlink_to("node")
    assert find_tool("node", str(tmp_path)) is None
