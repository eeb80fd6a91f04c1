"""What the documentation shows is what happens: examples run, help texts and tables agree."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from conftest import Require
from kit.places import ROOT

SNIPPETS = sorted((ROOT / "docs" / "snippets").glob("*.py"))
NETWORK = sorted((ROOT / "docs" / "snippets" / "network").glob("*.py"))
STATE = sorted((ROOT / "docs" / "snippets" / "state").glob("*.py"))
HISTORY = sorted((ROOT / "docs" / "snippets" / "history").glob("*.py"))
VOLUMES = sorted((ROOT / "docs" / "snippets" / "volumes").glob("*.py"))
AGENTS = [ROOT / "docs" / "snippets" / "agents" / "tools.py"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
Done = subprocess.CompletedProcess[str]


def execute(argv: list[str], folder: Path, path: str | None = None) -> Done:
    env = {**os.environ, "PATH": path or os.environ["PATH"]}
    return subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, check=False, encoding="utf-8", timeout=55
    )


@cache
def refusal() -> str:
    """Return why sandboxes of the default level cannot be had here, or nothing."""
    done = execute([sys.executable, "-c", "import cellwall; cellwall.run('1')"], ROOT)
    return "" if done.returncode == 0 else done.stderr[-500:]


@pytest.fixture(autouse=True)
def _sandboxes(request: pytest.FixtureRequest, require: Require) -> None:
    if request.node.get_closest_marker("parametrize") or "folder" in request.fixturenames:
        require("sandboxes", not refusal(), refusal())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a copy of what a reader sees in a clone, with `cellwall` at hand."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command = tmp_path / "bin" / "cellwall"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m cellwall.apps.cli.main "$@"\n')
    command.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "snippet",
    [*SNIPPETS, *NETWORK, *STATE, *VOLUMES, *HISTORY, *AGENTS],
    ids=lambda path: path.stem,
)
def test_snippet_runs(snippet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine whose registries are behind a mirror has them at private addresses.
    monkeypatch.setenv("CELLWALL_NETWORK_ADDRESSES", "0.0.0.0/0,::/0")
    done = execute([sys.executable, str(snippet)], tmp_path)
    assert done.returncode == 0, done.stderr


def test_readme_library_example_runs(folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        done = execute([sys.executable, "-c", block], folder)
        assert done.returncode == 0, done.stderr


def test_readme_languages_example_runs(folder: Path, require: Require) -> None:
    missing = [tool for tool in ("gcc", "node") if shutil.which(tool) is None]
    require("C and JavaScript", not missing, f"not installed: {' '.join(missing)}")
    (block,) = re.findall(r"<!-- runs: languages -->\n```py\n(.*?)```", README, re.DOTALL)
    done = execute([sys.executable, "-c", block], folder)
    assert done.returncode == 0, done.stderr


def console_examples() -> list[tuple[str, str]]:
    """Return (command, expected output) of every `$ ` line of README's console blocks."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


@pytest.mark.parametrize(("command", "shown"), console_examples())
def test_readme_console_example_does_what_it_shows(command: str, shown: str, folder: Path) -> None:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = execute(["/bin/bash", "-c", command], folder, path)
    pattern = shown.replace("[", "[[]").replace("...", "*")
    assert fnmatch.fnmatchcase(done.stdout, pattern) or done.stdout == shown, done.stderr


def test_every_snippet_is_shown_and_help_is_current() -> None:
    folder = ROOT / "docs" / "snippets"
    pages = (
        ("library.md", SNIPPETS),
        ("agents/tools.md", AGENTS),
        ("sdk.md", folder.glob("sdk/*.py")),
        ("fleet.md", folder.glob("fleet/*.py")),
        ("network.md", folder.glob("network/policy*.py")),
        ("volumes.md", VOLUMES),
        ("state.md", STATE),
        ("history.md", HISTORY),
        ("packages.md", folder.glob("network/packages*.py")),
        ("add-a-runtime.md", folder.glob("runtimes/*.py")),
    )
    for name, files in pages:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        shown = set(re.findall(r"snippet: (\S+)", page))
        assert {str(path.relative_to(folder)) for path in files} == shown
    done = execute([sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], ROOT)
    assert done.returncode == 0, done.stderr


def test_every_exit_status_of_the_page_is_in_the_code() -> None:
    from cellwall.model.outcome import Outcome

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE)) - {"1", "2"}
    told = Outcome.status.__doc__
    assert told is not None
    assert documented == set(re.findall(r"^ +(\d{3}) ", told, re.MULTILINE))


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_examples_are_what_their_generator_writes(tmp_path: Path) -> None:
    target = tmp_path / "orders.csv"
    execute([sys.executable, str(ROOT / "examples" / "make_orders.py"), str(target)], ROOT)
    assert target.read_bytes() == (ROOT / "examples" / "orders.csv").read_bytes()
