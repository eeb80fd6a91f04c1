"""A caller's own modules are found before those that the fork-server has loaded."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.guest.context import own_modules
from kit.guest.guest_python import Context, Server, pack_guest

NAMES = ["ast", "copy", "datetime", "json", "random", "string", "token", "types", "cellwall"]
ALWAYS_FOUND_FIRST = ["abc", "io", "os", "posixpath", "stat", "sys", "time"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(pack_guest(tmp_path_factory.mktemp("guest")), ["json.tool"])
    yield server
    server.close()


@pytest.fixture
def context(server: Server, tmp_path: Path) -> Iterator[Context]:
    context = server.fork(tmp_path)
    yield context
    context.close()


@pytest.mark.parametrize("name", [*NAMES, *ALWAYS_FOUND_FIRST])
def test_program_imports_what_python_would(context: Context, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("OWN = 1")
    source = f"import {name}\nprint(hasattr({name}, 'OWN'), flush=True)\n"
    (tmp_path / "again.py").write_text(source)
    command = [sys.executable, "-S", "again.py"]
    real = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    result = context.execute(source, mode="program")
    assert result.stdout == real.stdout.decode()
    assert result.stdout == f"{name in NAMES}\n"


def test_packages_take_their_parts_with_them(context: Context, tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("")
    (tmp_path / "json" / "tool.py").write_text("OWN = 1")
    result = context.execute("import json.tool\nprint(json.tool.OWN)", mode="program")
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_folder_without_a_package_in_it_is_none(context: Context, tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    result = context.execute("import json\nprint(json.dumps(1))", mode="program")
    assert result.stdout == "1\n"


def test_what_reports_for_a_program_is_not_the_callers(context: Context, tmp_path: Path) -> None:
    for name in ("json", "base64", "traceback", "linecache", "tokenize", "threading", "random"):
        (tmp_path / f"{name}.py").write_text("raise_ = 1")
    source = "import json, threading, traceback\ndisplay(1)\nresult = [2]\ndef main(): 1/0\n"
    result = context.execute(source, mode="program", arguments={})
    assert [shown["text/plain"] for shown in result.bodies("display")] == ["1"]
    assert [error["name"] for error in result.bodies("error")] == ["ZeroDivisionError"]
    assert "line 4, in main" in result.stderr
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == 1


def test_cell_imports_its_own_module(context: Context, tmp_path: Path) -> None:
    context.execute("1", mode="cell")
    (tmp_path / "token.py").write_text("OWN = 1")
    assert context.execute("import token; token.OWN", mode="cell").text == "1"
    assert context.execute("import token; token.OWN", mode="cell").text == "1"


def test_cell_keeps_what_it_has_imported(context: Context, tmp_path: Path) -> None:
    context.execute("import random", mode="cell")
    (tmp_path / "random.py").write_text("OWN = 1")
    assert context.execute("import random\nhasattr(random, 'OWN')", mode="cell").text == "False"


def test_own_module_is_loaded_once(context: Context, tmp_path: Path) -> None:
    (tmp_path / "token.py").write_text("print('loaded')")
    context.execute("import token; token.x = 1", mode="cell")
    result = context.execute("import token; token.x", mode="cell")
    assert (result.stdout, result.text) == ("", "1")


def test_what_is_found_without_a_folder_is_looked_for_there_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Shortcut:
        is_shortcut = True

        def find_spec(self, name: str, *_asked: object) -> None:
            raise AssertionError(f"asked for {name}")

    monkeypatch.setattr(sys, "meta_path", [Shortcut(), *sys.meta_path])
    (tmp_path / "lexer_of_mine.py").write_text("X = 1")
    own_modules.make_room(str(tmp_path))
    assert importlib.import_module("lexer_of_mine").X == 1
    monkeypatch.delitem(sys.modules, "lexer_of_mine")
    with pytest.raises(AssertionError, match="asked for lexer_of_others"):
        importlib.import_module("lexer_of_others")
