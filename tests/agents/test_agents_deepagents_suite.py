"""LangChain's own suite for sandboxes of Deep Agents passes, with two releases of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as XML

import pytest

from kit.agents.other_environment import python_of, run_suite
from kit.servers import ALICE, Server

SUITE = Path(__file__).parent / "suites" / "deepagents_suite.py"
pytestmark = pytest.mark.timeout(580)  # two hundred packages are installed at first

_OLDER = {
    "test_write_existing_file_fails": "overwriting is what `write` does since 0.7",
    **dict.fromkeys(
        (
            "test_glob",
            "test_glob_basic_pattern",
            "test_glob_with_directories",
            "test_glob_hidden_files_explicitly",
            "test_glob_with_character_class",
            "test_glob_with_question_mark",
        ),
        "`glob` returns absolute paths since 0.7",
    ),
}
"""What the suite (1.1.9) asks and Deep Agents 0.7 no longer does, with any sandbox."""

GROUPS = {"suite-deepagents": _OLDER, "suite-deepagents-0-6": {}}


@dataclass(frozen=True)
class Result:
    passed: frozenset[str]
    failed: frozenset[str]
    said: str


def result_of(group: str, chosen: str, folder: Path, **env: str) -> Result:
    report = folder / "report.xml"
    options = ["-k", chosen, "-o", "asyncio_mode=auto", f"--junitxml={report}", "--timeout=60"]
    python = python_of(group, "client")
    done = run_suite(python, SUITE, folder, *options, env=env, timeout=300)
    assert report.is_file(), done.stdout + done.stderr
    cases = XML.parse(report).getroot().iter("testcase")
    bad = {case.get("name", ""): case.find("failure") is None and case.find("error") is None
           for case in cases}  # fmt: skip
    return Result(
        frozenset(name for name, is_good in bad.items() if is_good),
        frozenset(name for name, is_good in bad.items() if not is_good),
        done.stdout[-4000:],
    )


@pytest.mark.parametrize("group", GROUPS)
def test_embedded_sandbox_passes_the_suite(group: str, tmp_path: Path) -> None:
    got = result_of(group, "TestEmbedded", tmp_path)
    assert got.failed <= GROUPS[group].keys(), got.said
    assert len(got.passed) >= 86 - len(GROUPS[group])


def test_sandbox_of_a_server_passes_the_suite(server: Server, tmp_path: Path) -> None:
    where = {"CELLWALL_URL": server.address, "CELLWALL_API_KEY": ALICE}
    got = result_of("suite-deepagents", "TestServer", tmp_path, **where)
    assert got.failed <= _OLDER.keys(), got.said
    assert len(got.passed) >= 86 - len(_OLDER)


def test_a_backend_that_is_broken_does_not_pass(tmp_path: Path) -> None:
    got = result_of(
        "suite-deepagents-0-6", "TestEmbedded and execute", tmp_path, SUITE_RUNTIME="no"
    )
    assert got.failed
    assert not got.passed
