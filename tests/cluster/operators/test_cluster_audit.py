"""A gateway's own audit: who asked for what, at which node, what was refused; one whole chain."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cellwall.model.ids import node_of
from kit.cluster.processes import cluster
from kit.servers import ADMIN

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


def _audit(url: str, *words: str) -> str:
    argv = [sys.executable, "-m", "cellwall.apps.cli.main", "audit", *words, "--store", url]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_chain_says_who_asked_for_what_at_which_node_and_what_was_refused() -> None:
    with cluster(1, gateways=0) as made:
        url = f"sqlite:///{made.folder / 'gateway.db'}"
        made.start_gateway(audit=url)
        made.wait_ready(1)
        alice, (name,) = made.client(), made.states()
        said = {"x-request-id": "mine-1"}
        assert alice.post("/execute", json={"code": "1"}, headers=said).status_code == 200
        session = alice.post("/sandboxes", json={}).json()["id"]
        assert alice.get(f"/sandboxes/{session}").status_code == 200
        assert alice.delete(f"/sandboxes/{session}").status_code == 200
        many = {"executions": [{"code": "1"}] * 3}
        assert alice.post("/executions/batch", json=many).status_code == 200
        for _ in range(5):
            assert made.client(key="x" * 40).post("/execute", json={}).status_code in {401, 429}
        assert alice.post(f"/nodes/{name}/drain").status_code == 403
        assert made.client(key=ADMIN).post(f"/nodes/{name}/drain").status_code == 200
        said = {"x-request-id": "mine-2"}
        assert alice.post("/execute", json={"code": "1"}, headers=said).status_code == 503
        assert made.gateways[0].stop() == 0
        found = [json.loads(line) for line in _audit(url, "tail", "--json").splitlines()]
        assert "whole" in _audit(url, "verify")
    assert node_of(session) == name
    assert [found[0]["action"], found[-1]["action"]] == ["server.start", "server.stop"]
    passed = [
        (each["tenant"], each["object"], json.loads(each["details"]))
        for each in found
        if each["action"] == "request.pass"
    ]
    assert passed == [
        ("alice", "/execute", {"node": name, "status": 200}),
        ("alice", "/sandboxes", {"node": name, "status": 201}),
        ("alice", f"sandbox:{session}", {"node": name, "status": 200}),
        ("alice", "/executions/batch", {"node": "", "status": 200}),
        ("alice", "/execute", {"node": "", "status": 503}),
    ]
    assert [each["request"] for each in found if each["object"] == "/execute"] == [
        "mine-1",
        "mine-2",
    ]
    refused = [each for each in found if each["action"] == "request.refuse"]
    assert {each["decision"] for each in refused} == {"refused"}
    assert {"unauthorized", "forbidden"} <= {each["result"] for each in refused}
    assert {each["tenant"] for each in refused} == {"", "alice"}
    (drained,) = [each for each in found if each["action"] == "node.drain"]
    assert (drained["tenant"], drained["object"]) == ("admin", f"node:{name}")
