"""What docs/audit-and-metrics.md shows is what happens, and its table of metrics is the truth."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from cellwall.server.auth.keys import digest_of
from kit.places import ROOT
from kit.servers import ADMIN, Server, metrics_address, start

PAGE = (ROOT / "docs" / "audit-and-metrics.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.needs("curl")
BLOCKS = dict(re.findall(r"<!-- runs: (\w+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server with the page's settings, and where its metrics are."""
    folder = tmp_path_factory.mktemp("page")
    found = re.search(r"<!-- file: cellwall.toml -->\n```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    config = found[1].replace("SHA256_OF_THE_KEY", digest_of(ADMIN)).replace("9464", "0")
    config = config.replace("anchors.log", str(folder / "anchors.log"))
    config = config.replace("[server]", "[server]\naudit_anchor_s = 0.1")
    server = start(folder, "--port", "0", config=config)
    address = metrics_address(server)
    server.client(ADMIN).post("/execute", json={"code": "1"}).raise_for_status()
    yield server, address
    server.stop()


def shell(name: str, served: tuple[Server, str]) -> str:
    server, metrics = served
    text = BLOCKS[name].replace("http://127.0.0.1:8080", server.address)
    text = text.replace("http://127.0.0.1:9464/metrics", metrics)
    text = text.replace("cellwall audit", f"{sys.executable} -m cellwall.apps.cli.main audit")
    state = str(server.log.parent / "state")
    done = subprocess.run(
        ["/bin/bash", "-ec", text],
        env={**os.environ, "CELLWALL_API_KEY": ADMIN, "CELLWALL_STATE_DIR": state},
        cwd=server.log.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_can_be_looked_at(served: tuple[Server, str]) -> None:
    printed = shell("look", served)
    assert "execution.accept" in printed
    assert '"action":"server.start"' in printed


def test_it_can_be_checked(served: tuple[Server, str]) -> None:
    assert "whole" in shell("verify", served)


def test_it_can_be_taken_elsewhere(served: tuple[Server, str]) -> None:
    assert "whole" in shell("rotate", served)


def test_metrics_can_be_read(served: tuple[Server, str]) -> None:
    assert 'verdict="ok"} ' in shell("scrape", served)


def test_table_of_metrics_is_complete(served: tuple[Server, str]) -> None:
    types = re.findall(r"^# TYPE (cellwall_\w+)", httpx.get(served[1]).text, re.MULTILINE)
    first = r"^\| (`cellwall_[^|]*) \|"
    documented: set[str] = set()
    for cell in re.findall(first, PAGE, re.MULTILINE):
        names = re.findall(r"`(\w+)`", cell)
        stem = names[0].rpartition("_")[0]
        documented |= {stem + name if name.startswith("_") else name for name in names}
    assert documented == set(types)
