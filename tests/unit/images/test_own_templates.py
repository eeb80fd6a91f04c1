"""Names of tenants' templates: whose they are, what is a name, and that they are written whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.engine.images.own_templates import OwnTemplates, whole_name
from cellwall.images.ignored import Ignored
from cellwall.model.errors import NotFound, UsageError


def test_names_have_a_tag() -> None:
    assert whole_name("task") == "task:latest"
    assert whole_name("a.b_c-1:V2.0") == "a.b_c-1:V2.0"


@pytest.mark.parametrize(
    "name",
    ["", ":", "a:", "A", "../a", "a/b", "a:b:c", "a b", "a\n", ".a", "a" * 64, "a:" + "b" * 64],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError):
        whole_name(name)


def test_each_tenant_has_names_of_its_own(tmp_path: Path) -> None:
    store = OwnTemplates(tmp_path)
    store.put("alice", ["task:1"], "sha256:a")
    store.put("alice", ["task:1", "task:2"], "sha256:b")
    store.put("../bob", ["task:1"], "sha256:b")
    again = OwnTemplates(tmp_path)
    assert [(each.name, each.image) for each in again.all("alice")] == [
        ("task:1", "sha256:b"),
        ("task:2", "sha256:b"),
    ]
    assert len({each.built_at for each in again.all("alice")}) == 1
    assert (again.images()["sha256:a"], again.images()["sha256:b"]) == (0, 3)
    again.remove("alice", "task:1")
    with pytest.raises(NotFound):
        store.get("alice", "task:1")
    assert store.get("../bob", "task:1").image == "sha256:b"
    assert [path.name for path in tmp_path.iterdir()] == ["own-templates"]


def test_last_pattern_that_fits_decides(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("# words\n*.log\n!kept.log\n**/cache\nbuild/\n")
    ignored = Ignored(tmp_path)
    left = [
        name for name in ("a.log", "kept.log", "x/cache", "build/a", "src") if ignored.has(name)
    ]
    assert left == ["a.log", "x/cache", "build/a"]
    assert not Ignored(tmp_path / "none").has("a.log")
