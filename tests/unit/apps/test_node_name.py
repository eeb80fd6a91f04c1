"""The name of a server among several: drawn once, kept, never guessed from a damaged file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cellwall.apps.node_name import draw, name_of
from cellwall.apps.settings_loader import load
from cellwall.engine.policy.settings import EngineSettings
from cellwall.model.errors import UsageError
from cellwall.model.ids import AUTO, check_node


def test_name_is_drawn_once_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
    name = name_of(AUTO, tmp_path)
    assert check_node(name)
    assert [name_of(AUTO, tmp_path) for _ in range(3)] == [name] * 3
    kept = tmp_path / "server" / "node"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert [each.name for each in kept.parent.iterdir()] == ["node"]


def test_name_of_the_setting_is_not_written_down(tmp_path: Path) -> None:
    assert name_of("a7c2", tmp_path) == "a7c2"
    assert name_of("", tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_new_name_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    before = name_of(AUTO, tmp_path)
    (tmp_path / "server" / ".node.new").write_text("left by a killed server")
    after = draw(tmp_path)
    assert after != before
    assert name_of(AUTO, tmp_path) == after


@pytest.mark.parametrize("content", ["", "a7c", "a7c2x", "A7C2", "auto", "\xff\xfe", "a" * 1000])
def test_file_without_a_name_is_refused(tmp_path: Path, content: str) -> None:
    draw(tmp_path)
    (tmp_path / "server" / "node").write_text(content)
    with pytest.raises(UsageError, match="holds no name of a node") as refused:
        name_of(AUTO, tmp_path)
    assert "remove it for a new one" in str(refused.value.remedy)


def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("a7c2\n")
    (tmp_path / "server").mkdir()
    os.symlink(elsewhere, tmp_path / "server" / "node")
    with pytest.raises(UsageError, match="cannot be read"):
        name_of(AUTO, tmp_path)


def test_setting_is_a_name_or_auto_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    for good in ("a7c2", AUTO, ""):
        path.write_text(f'[server]\nnode = "{good}"')
        assert load(path, {}, {}).server.node == good
    for wrong in ("A7C2", "a7c", "node-1"):
        path.write_text(f'[server]\nnode = "{wrong}"')
        with pytest.raises(UsageError, match="is not the name of a node") as refused:
            load(path, {}, {})
        assert refused.value.remedy
    path.write_text('[engine]\nnode = "a7c2"')
    with pytest.raises(UsageError, match="unknown name 'node'"):
        load(path, {}, {})
    with pytest.raises(UsageError, match="is not the name of a node"):
        EngineSettings(node=AUTO)
