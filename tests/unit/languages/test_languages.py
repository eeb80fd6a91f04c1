"""The language registry, and finding tools where a jail would show them."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellwall.languages import callers, lookup, mistakes, registry, tools
from cellwall.languages.entries.language import Language
from cellwall.languages.tools import find_tool
from cellwall.model.errors import NotFound

CALLERS = Path(callers.__file__).parent


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


@pytest.mark.parametrize("name", ["python", "Python", "py", "sh", "lua"])
def test_lookup_finds_what_the_registry_finds(name: str) -> None:
    assert lookup.find(name) is registry.find(name)


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
    parts = (*language.run, *language.compile)
    if language.name == "sql":  # runs in the context's own process, of a template that has it
        assert not parts
    else:
        assert "{file}" in parts or "{sources}" in parts
        assert language.install.startswith("apt-get install ")
    assert Path(language.file_name).suffix == language.extensions[0]
    assert language.hello.endswith("\n")
    assert language.failing.code
    assert bool(language.failing.error) == bool(
        language.error or language.name in {"python", "sql"}
    )
    assert not language.caller or (CALLERS / language.caller).is_file()
    assert all(name == name.lower() for name in (*language.aliases, *language.extensions))
    for pattern in (*language.options, *language.named_by, language.error, language.line):
        re.compile(pattern.replace("{file}", "x"), re.MULTILINE)


def test_a_source_whose_name_looks_like_an_option_is_none() -> None:
    command = registry.find("c").compile_command("main.c", ["-DX=3.c", "a.c"])
    assert command[-4:-1] == ["./-DX=3.c", "a.c", "main.c"]


def test_compile_command_takes_sources_in_order_and_options() -> None:
    command = registry.find("c").compile_command("main.c", ["a.c", "data.csv", "b.C"], ["-O0"])
    assert command[-5:] == [".cellwall/build/program", "a.c", "b.C", "main.c", "-lm"]
    assert "-O0" in command
    assert "{options}" not in registry.find("c").compile_command("main.c")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("public class Hello {}", "Hello.java"),
        ("import x;\npublic final class A1 {}\nclass B {}", "A1.java"),
        ("class Helper {} class Start { static void main(String[] a) {} }", "Start.java"),
        ("int x;", "Main.java"),
        ("class Main {\n  public interface Shape {}\n  static void main() {}\n}", "Main.java"),
        ("class A {\n  public class B {}\n}\npublic class C {\n}", "C.java"),
        ("class A {\n}\nfinal class Z {\n  class In {}\n  static void main() {}\n}", "Z.java"),
        ("  public class Indented {\n  }", "Indented.java"),
    ],
)
def test_javas_source_is_named_by_its_class(source: str, name: str) -> None:
    assert registry.find("java").name_of(source) == name


def test_the_last_error_of_r_is_the_one_that_ended_it() -> None:
    said = 'Error in try(stop("first")) : first\nError in f() : second\nExecution halted\n'
    error = mistakes.uncaught(registry.find("r"), "main.R", said)
    assert error is not None
    assert error.value == "second"


@pytest.mark.parametrize("language", registry.LANGUAGES.values(), ids=lambda entry: entry.name)
def test_hostile_output_and_source_cost_no_more_than_a_look(language: Language) -> None:
    began = time.thread_time()  # others of this process may be at work, too
    for piece in (
        "a",
        "\n",
        "at ",
        'File "',
        "class X ",
        "Error: ",
        "Error: \n",
        "(" * 50,
        "\\",
        "main.py:1",
    ):
        text = piece * (100_000 // len(piece))
        mistakes.uncaught(language, language.file_name, text)
        mistakes.line_of(language, language.file_name, text)
        mistakes.compile_error(language.file_name, text)
        language.name_of(text)
    assert time.thread_time() - began < 5


def test_bash_is_detected_with_its_version() -> None:
    found = registry.detect(registry.find("bash"))
    assert found is not None
    assert found.path.endswith("/bin/bash")
    assert "bash" in found.version


def test_languages_of_one_tool_say_each_their_own() -> None:
    python, sql = (registry.detect(registry.find(name)) for name in ("python", "sql"))
    assert python is not None
    assert sql is not None
    assert (python.path, sql.version) == (sql.path, "DuckDB of the template")
    assert python.version.startswith("Python 3")


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


def test_tool_is_asked_once_by_two_that_look_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second question would be under way before the first one's answer, and meet it."""
    asked: list[bool] = []
    together = threading.Barrier(2)
    read_version = tools.read_version

    def read(language: Language, path: str) -> str:
        try:
            together.wait(0.3)
        except threading.BrokenBarrierError:
            asked.append(False)
        else:
            asked.append(True)
        return read_version(language, path)

    monkeypatch.setattr(tools, "_known", {})
    monkeypatch.setattr(tools, "read_version", read)
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(tools.detect, [registry.find("bash")] * 2)]
    assert asked == [False]
    assert found[0] == found[1]
    assert found[0] is not None
    assert "bash" in found[0].version
