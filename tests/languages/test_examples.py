"""The examples in every language: `cellwall run` picks it by the name, a batch runs them all."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from cellwall.apps.cli.commands import app_of
from cellwall.languages.entries.language import Language
from cellwall.languages.registry import LANGUAGES, by_extension
from cellwall.languages.tools import is_installed
from conftest import Require
from kit.places import ROOT
from kit.servers import ALICE, Server

pytestmark = [pytest.mark.timeout(300)]
EXAMPLES = ROOT / "examples"
EVERY = pytest.mark.parametrize("language", LANGUAGES.values(), ids=lambda each: each.name)


@EVERY
def test_hello_runs_by_its_name(language: Language, require: Require) -> None:
    require(language.name, is_installed(language), f"run: {language.install}")
    path = EXAMPLES / f"hello{language.extensions[0]}"
    done = CliRunner().invoke(app_of(["run"]), ["run", str(path)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("hello")


def test_programs_of_every_language_run_in_one_batch(server: Server, require: Require) -> None:
    folders = sorted(path for path in (EXAMPLES / "programs").iterdir() if path.is_dir())
    wanted: list[tuple[Path, str]] = []
    programs = []
    for folder in folders:
        expected = (folder / "expected.txt").read_text(encoding="utf-8")
        for path in sorted(folder.glob(f"{folder.name}.*")):
            language = by_extension(path.suffix)
            assert language is not None, path
            require(language.name, is_installed(language), f"run: {language.install}")
            wanted.append((path, expected))
            code = path.read_text(encoding="utf-8")
            programs.append({"code": code, "language": language.name, "timeout": 60.0})
            if language.name == "sql":
                programs[-1]["template"] = "data"
            if (folder / "input.txt").exists():
                programs[-1]["stdin"] = (folder / "input.txt").read_text(encoding="utf-8")
    assert len(programs) == len(folders) * len(LANGUAGES) >= 6 * len(LANGUAGES)
    answer = httpx.post(
        f"{server.address}/executions/batch",
        headers={"authorization": f"Bearer {ALICE}"},
        json={"executions": programs, "concurrency": 3},
        timeout=280,
    )
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1] == {"type": "end", "count": len(programs), "failed": 0}
    for line in lines[:-1]:
        path, expected = wanted[line["index"]]
        assert (line["verdict"], line["stdout"]) == ("ok", expected), (path, line)


def test_languages_are_listed_with_what_is_installed(server: Server) -> None:
    answer = httpx.get(
        f"{server.address}/languages", headers={"authorization": f"Bearer {ALICE}"}, timeout=60
    ).json()
    listed = {each["name"]: each for each in answer["languages"]}
    assert list(listed) == list(LANGUAGES)
    for name, language in LANGUAGES.items():
        assert listed[name]["installed"] is is_installed(language)
        assert listed[name]["install"] == language.install
    assert listed["python"]["version"].startswith("Python 3")


@pytest.mark.needs("gcc")
def test_answer_over_http_shows_the_compile_stage(server: Server) -> None:
    headers = {"authorization": f"Bearer {ALICE}"}
    body = {"code": "int main(void) {\n  return x;\n}\n", "language": "c"}
    answer = httpx.post(f"{server.address}/execute", headers=headers, json=body, timeout=60).json()
    assert (answer["status"], answer["verdict"]) == ("error", "compile_error")
    assert (answer["exception"]["name"], answer["exception"]["line"]) == ("CompileError", 2)
    assert answer["compile"]["outcome"]["verdict"] == "compile_error"
    assert answer["compile"]["limits"]["memory_mb"] == 1024
