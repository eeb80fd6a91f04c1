"""Every command of docs/cluster.md, in its order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.cluster.page import NODES_LISTEN, PAGE, said_by

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240)]  # its ports

_BLOCK = re.compile(r"<!-- runs: (\w+) -->\n```sh\n(.*?)```", re.DOTALL)
_WAITS = {
    "nodes": NODES_LISTEN,
    "gateway": "until [ $(cellwall cluster status | grep -c ready) = 2 ]; do sleep 0.1; done",
}


def test_every_command_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    names = [name for name, _ in blocks]
    assert names == ["certificates", "settings", "nodes", "gateway", "status", "use"]
    said = said_by(blocks, _WAITS, tmp_path)
    assert said["status"].count("ready") == 2
    assert '"stdout":"42\\n"' in said["use"]
