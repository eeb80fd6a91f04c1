"""`cellwall volumes` and `cellwall run --volume`, as their users start them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.engine.templates.store import state_dir
from kit import command_line

pytestmark = pytest.mark.root
Call = Callable[..., command_line.Done]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Call the command with a state directory of its own, in which templates are built."""
    place = tmp_path / "state"
    place.mkdir()
    (place / "templates").symlink_to(state_dir() / "templates")
    return lambda *words: command_line.start(*words, CELLWALL_STATE_DIR=str(place))


def succeeded(done: command_line.Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_go_in_and_come_out(call: Call, tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/x").write_text("from the host")
    (tmp_path / "one").write_text("one file")
    assert succeeded(call("volumes", "create", "data", "--size", "16")) == "data\n"
    succeeded(call("volumes", "put", str(tmp_path / "in"), "data:work"))
    succeeded(call("volumes", "put", str(tmp_path / "one"), "data:"))
    code = "print(open('/data/work/deep/x').read(), open('/data/one').read())"
    said = succeeded(call("run", "--volume", "data:/data:ro", "-c", code))
    assert said == "from the host one file\n"
    succeeded(call("run", "--volume", "data:/data", "-c", "open('/data/out', 'w').write('done')"))
    assert succeeded(call("volumes", "copy", "data", "more")) == "more\n"
    succeeded(call("volumes", "get", "more:out", f"{tmp_path}/"))
    assert (tmp_path / "out").read_text() == "done"
    succeeded(call("volumes", "get", "data:work", str(tmp_path / "tree")))
    assert (tmp_path / "tree/deep/x").read_text() == "from the host"
    (data, more) = json.loads(succeeded(call("volumes", "ls", "--json")))
    assert (data["name"], data["size_mb"], more["name"]) == ("data", 16, "more")
    assert 0 < data["used_bytes"] < 1 << 20
    assert succeeded(call("volumes", "rm", "data", "more")) == "data\nmore\n"
    assert json.loads(succeeded(call("volumes", "ls", "--json"))) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("volumes", "rm", "none"), "none of that name"),
        (("volumes", "create", "A"), "is not a name"),
        (("volumes", "create", "data", "--size", "0"), "MiB"),
        (("volumes", "get", "data", "x"), "NAME:PATH"),
        (("run", "--volume", "none:/data", "-c", "1"), "cellwall volumes create none"),
        (("run", "--volume", "none", "-c", "1"), "NAME:PATH:ro"),
        (("run", "--volume", "none:/usr", "-c", "1"), "own system"),
    ],
)
def test_mistakes_are_said_with_a_remedy(call: Call, words: tuple[str, ...], said: str) -> None:
    done = call(*words)
    assert done.returncode == 125
    assert said in done.stderr
    assert done.stdout == ""
