"""Every command of "Several gateways" in docs/cluster.md, in its order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.cluster.page import NODES_LISTEN, PAGE, said_by
from kit.postgres_server import Postgres

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240)]  # its ports

_BEFORE = re.compile(r"<!-- runs: (certificates|settings|nodes) -->\n```sh\n(.*?)```", re.DOTALL)
_BLOCK = re.compile(r"<!-- directory: (\w+) -->\n```sh\n(.*?)```", re.DOTALL)
_WAITS = {
    "nodes": NODES_LISTEN,
    "gateways": "for n in 1 2; do until grep -q listening gate-$n.out; do sleep 0.1; done; done\n"
    "for p in 7440 7450; do until [ $(CELLWALL_URL=http://127.0.0.1:$p cellwall cluster status "
    "| grep -c ready) = 2 ]; do sleep 0.1; done; done",
}


def test_every_command_of_the_section_does_what_it_says(tmp_path: Path, postgres: Postgres) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = [*_BEFORE.findall(page), *_BLOCK.findall(page)]
    assert [name for name, _ in blocks][3:] == ["init", "gateways", "use", "keys", "background"]
    said = said_by(blocks, _WAITS, tmp_path, PGHOST=str(postgres.folder), PGUSER="cellwall")
    assert "cellwall_gateway" in said["init"]
    first, second = re.findall(r'"stdout":"([0-9a-f]{16})\\n"', said["use"])
    assert first == second
    assert '"name":"API_KEY"' in said["keys"]
    assert "not-shown-again" not in said["keys"]
    assert '"stdout":"42\\n"' in said["background"]
