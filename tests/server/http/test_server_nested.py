"""Values that are small as text and deep, or large, as objects: what the server keeps and tells."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from kit.server.crashes import house
from kit.servers import logged, running

_RAW = """
import json, os, socket, struct
line = socket.socket(socket.AF_UNIX)
line.connect(display.__closure__[0].cell_contents._outbox._link._address)
head, body = json.dumps({"ev": "value"}).encode(), b"[" * DEPTH + b"]" * DEPTH
line.sendall(struct.pack(">II", len(head), len(body)) + head + body)
line.close()
os._exit(0)
"""
_DEPTHS = (150, 960, 966, 970, 971, 972)
"""The first is the control. The others were decoded, and too deep for this or that encoder."""


def _executed(client: httpx.Client, code: str, **body: object) -> httpx.Response:
    answer = client.post("/execute", json={"code": code, **body})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.timeout(120)
def test_nested_value_is_refused_the_same_now_and_after_a_restart(tmp_path: Path) -> None:
    """It was told `ok`, never reached the disk, and was `interrupted` for the next server."""
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        told = [_executed(client, _RAW.replace("DEPTH", str(depth))).json() for depth in _DEPTHS]
        for each in told:
            assert client.get(f"/executions/{each['execution_id']}").json() == each
        client.get("/stats")
        logged(server, lambda each: each.get("route") == "/stats")
        assert "RecursionError" not in server.log.read_text(encoding="utf-8")
        made.kill(server)
        client = made.start().client()
        for each in told:
            assert client.get(f"/executions/{each['execution_id']}").json() == each
    assert [each["verdict"] for each in told] == ["ok", *["sandbox_error"] * 5]
    assert told[0]["result"] is not None


@pytest.mark.parametrize("levels", [98, 150])
def test_arguments_are_taken_to_a_hundred_levels(levels: int) -> None:
    nested: list[object] = []
    for _ in range(levels):
        nested = [nested]
    code = "def main(value): return value"
    with running() as server:
        body = {"code": code, "arguments": {"value": nested}}
        answer = server.client().post("/execute", json=body)
    if levels > 100:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "usage")
    else:
        assert answer.json()["result"] == nested


_EMPTIES = "result = [[]] * 250_000"
_VALUES = 20


def test_large_values_are_kept_as_text() -> None:
    """Twenty of a megabyte: as objects they were 350, of which the server counted none."""
    with running() as server:
        client = server.client()
        for _ in range(4):
            _executed(client, _EMPTIES)
        before = server.rss_bytes()
        answers = [len(_executed(client, _EMPTIES).content) for _ in range(_VALUES)]
        grown = server.rss_bytes() - before
    assert min(answers) > 750_000
    assert grown < 6 * sum(answers)
