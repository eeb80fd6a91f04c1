"""What docs/server.md and the README show over curl is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.places import ROOT
from kit.servers import ALICE, Server

PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SDK = sorted((ROOT / "docs" / "snippets" / "sdk").glob("*.py"))
pytestmark = pytest.mark.needs("curl")
BLOCKS = dict(re.findall(r"<!-- runs: (\w+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL))


def shell(text: str, server: Server, folder: Path) -> str:
    text = text.replace("http://127.0.0.1:8080", server.address)
    text = text.replace("cw_the_key_it_printed", ALICE)
    done = subprocess.run(
        ["/bin/bash", "-ec", text],
        env={**os.environ, "CELLWALL_API_KEY": ALICE},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chart_comes_back(server: Server, tmp_path: Path) -> None:
    printed = shell(BLOCKS["chart"], server, tmp_path).splitlines()
    assert printed[0].startswith("stdout 42")
    assert printed[-1] == "end ok"
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_readme_shows_the_same() -> None:
    assert BLOCKS["chart"] in README


def python(argv: list[str], server: Server, folder: Path) -> None:
    env = {**os.environ, "CELLWALL_URL": server.address, "CELLWALL_API_KEY": ALICE}
    done = subprocess.run(
        [sys.executable, "-W", "error", *argv],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("snippet", SDK, ids=lambda path: path.stem)
def test_snippet_of_the_sdk_runs(snippet: Path, server: Server, tmp_path: Path) -> None:
    python([str(snippet)], server, tmp_path)


def test_readme_leads_to_the_sdk(server: Server, tmp_path: Path) -> None:
    block = re.search(r"<!-- runs: sdk -->\n```py\n(.*?)```", README, re.DOTALL)
    assert block is not None
    python(["-c", block[1]], server, tmp_path)
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_program_in_the_background(server: Server, tmp_path: Path) -> None:
    printed = shell(BLOCKS["background"], server, tmp_path)
    assert '"stdout":"42\\n"' in printed
    assert '"message":"it had ended"' in printed


def test_one_program_and_a_session(server: Server, tmp_path: Path) -> None:
    assert '"stdout":"42\\n"' in shell(BLOCKS["one"], server, tmp_path)
    printed = shell(BLOCKS["session"], server, tmp_path)
    assert '"text":"42"' in printed
    assert '"text":"remember"' in printed
    assert '"message":"deleted"' in printed
