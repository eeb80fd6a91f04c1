"""Every example of docs/agents runs as its reader would run it: copied into an empty folder.

The frameworks and the sandboxes are real; where a page talks to a model's API, a scripted stand-in
answers. After each example no sandbox is left.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.agents.stand_in import (
    LAST,
    Json,
    chat_script,
    message_script,
    response_script,
    standing_in,
)
from kit.places import ROOT, TESTS

PAGES = sorted((ROOT / "docs" / "agents").glob("*.md"))
pytestmark = pytest.mark.timeout(300)  # frameworks take seconds of CPU to import

_EXAMPLE = re.compile(r"<!-- runs: (\w+) -->\n(`{3,})python\n(.*?)\n\2\n", re.DOTALL)
OURS = {"README", "openai", "anthropic", "langchain", "llamaindex", "smolagents", "autogen"}
OURS |= {"deepagents", "inspect", "pytest"}
EXAMPLES = {
    name: source
    for page in PAGES
    if page.stem in OURS
    for name, _, source in _EXAMPLE.findall(page.read_text(encoding="utf-8"))
}


@dataclass(frozen=True)
class Ran:
    printed: str
    status: int
    left: int


def ran(source: str, folder: Path, *, model_url: str = "", way: str = "") -> Ran:
    path = folder / "test_example.py"
    path.write_text(source)
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
    urls = {"OPENAI_BASE_URL": f"{model_url}/v1", "ANTHROPIC_BASE_URL": model_url}
    driver = TESTS / "kit" / "agents" / "counting_run.py"
    done = subprocess.run(
        [sys.executable, driver, path.name, *([way] if way else [])],
        cwd=folder,
        env={**os.environ, **keys, **urls, "NO_COLOR": "1"},
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=240,
    )
    left = int((folder / "left.txt").read_text())
    return Ran(done.stdout + done.stderr, done.returncode, left)


def test_every_page_has_an_example() -> None:
    assert {page.stem for page in PAGES} >= OURS
    assert len(EXAMPLES) == len(OURS) + 2  # OpenAI has two APIs, the README two loops


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"openai", "responses", "anthropic"}))
def test_example_runs(name: str, tmp_path: Path) -> None:
    done = ran(EXAMPLES[name], tmp_path, way="pytest" if name == "pytest" else "")
    assert done.status == 0, done.printed
    assert done.left == 0
    if name not in ("tool", "branches", "pytest"):
        assert "385" in done.printed


@pytest.mark.parametrize(
    ("name", "script"),
    [("openai", chat_script()), ("responses", response_script()), ("anthropic", message_script())],
)
def test_conversation_with_an_api(name: str, script: list[Json], tmp_path: Path) -> None:
    with standing_in(script) as model:
        done = ran(EXAMPLES[name], tmp_path, model_url=model.url)
    assert done.status == 0, done.printed
    assert done.printed.strip() == LAST
    assert done.left == 0
    assert len(model.requests) == 3
    assert b"\x89PNG" in image_in(model.requests[1])
    assert "385" in str(model.requests[2])  # the second call found the first one's variable


def image_in(request: Json) -> bytes:
    """Return the picture that was sent to the model, wherever its API has it."""
    found = re.search(r"(?:base64,|'data': ')(iVBOR[A-Za-z0-9+/=]+)", str(request))
    assert found is not None
    return base64.b64decode(found[1])


def test_the_count_would_see_one_that_was_left(tmp_path: Path) -> None:
    source = "import cellwall\nkept = cellwall.Sandbox()\n"
    assert ran(source, tmp_path).left == 1


def test_a_loop_that_fails_leaves_none(tmp_path: Path) -> None:
    source = EXAMPLES["tool"].replace("    print(answer.text)", "    raise RuntimeError('mine')")
    assert source != EXAMPLES["tool"]
    done = ran(source, tmp_path)
    assert (done.status, done.left) == (1, 0)
    assert "RuntimeError: mine" in done.printed


def test_agent_answers_and_draws(tmp_path: Path) -> None:
    agent = ROOT / "examples" / "agent" / "agent.py"
    source = f"import runpy, sys\nsys.path.insert(0, {str(agent.parent)!r})\n"
    source += f"sys.argv = ['agent.py']\nrunpy.run_path({str(agent)!r}, run_name='__main__')\n"
    done = ran(source, tmp_path)
    assert (done.status, done.left) == (0, 0), done.printed
    assert "KeyError: 'price'" in done.printed  # it was told, and did better
    assert "Friday brings the most: 3369.59 of 21112.70." in done.printed
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_examples_are_formatted() -> None:
    for name, source in EXAMPLES.items():
        done = subprocess.run(
            ["ruff", "format", "--isolated", "--line-length=100", "--diff", "-"],
            input=source + "\n",
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
