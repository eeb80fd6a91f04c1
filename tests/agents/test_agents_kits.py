"""Adapters of agent kits, with the kits themselves, in an environment that has all of them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree as XML

import pytest

from kit.agents.other_environment import python_of, run_suite
from kit.places import ROOT

SUITES = Path(__file__).parent / "suites"
GROUP = "suite-kits"
PAGE = (ROOT / "docs" / "agents" / "kits.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- kit: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
PRINTED = {
    "dspy": "{'output': 42}\n",
    "strands": "0 3\n",
    "adk": "42\n",
    "environment": "0 3\n",
    "agents": "['shell', 'apply_patch']\n",
    "sandbox": "42\n",
    "mini": "42 3\n",
}
QUIET = {"OPENAI_API_KEY": "none", "MSWEA_SILENT_STARTUP": "1"}
pytestmark = pytest.mark.timeout(580)  # two hundred packages are installed at first


@pytest.mark.parametrize(("suite", "least"), [("kits", 20), ("sandbox_agent", 8)])
def test_adapters_pass_their_suite(suite: str, least: int, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    options = ["--timeout=100", f"--junitxml={report}"]
    path = SUITES / f"{suite}_suite.py"
    done = run_suite(python_of(GROUP), path, tmp_path, *options, env=QUIET, timeout=400)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    cases = list(XML.parse(report).getroot().iter("testcase"))
    assert len(cases) >= least
    assert not [case for case in cases if case.find("skipped") is not None]


def test_every_kit_has_an_example_that_is_run() -> None:
    assert EXAMPLES.keys() == PRINTED.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_examples_print_what_they_say(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [python_of(GROUP), "-c", EXAMPLES[name]],
        cwd=tmp_path,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == PRINTED[name], done.stderr[-3000:]
