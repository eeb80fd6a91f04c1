"""What clients of other protocols are told when a node is lost: in their protocol's shape."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.cluster.processes import cluster
from kit.servers import ALICE
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

DOORS = "[doors.e2b]\n[doors.fusion]\n[doors.ragflow]\n"
SLEEP = "import time; time.sleep(100)"


def test_doors_tell_of_a_lost_node_in_their_own_shape() -> None:
    bearer = {"authorization": f"Bearer {ALICE}"}
    with cluster(1, 1, tiers=DOORS) as one, ThreadPoolExecutor(2) as pool:
        client = one.client()
        sandbox = client.post("/e2b/v2/sandboxes", json={"templateID": "base"}).json()["sandboxID"]
        asked = {
            "/fusion/run_code": {"code": SLEEP, "language": "python"},
            "/ragflow/run": {"code_b64": _as_base64(f"def main():\n    {SLEEP}"),
                             "language": "python", "arguments": {}},
        }  # fmt: skip
        answers = [
            pool.submit(one.client().post, path, json=body, headers=bearer)
            for path, body in asked.items()
        ]
        wait_until(lambda: client.get("/quota").json()["use"]["running"] == 2, "both run")
        one.nodes["node-0"].kill()
        fusion, ragflow = (each.result() for each in answers)
        assert (fusion.status_code, fusion.json()["status"]) == (200, "SandboxError"), fusion.text
        assert (ragflow.status_code, ragflow.json()["status"]) == (200, "program_runner_error")
        gone = client.get(f"/e2b/sandboxes/{sandbox}")
        assert (gone.status_code, gone.json()["code"]) == (404, 404), gone.text
        placed = {"e2b-sandbox-id": sandbox}
        inside = client.get("/e2b/files?path=/home/user/a.txt", headers=placed)
        assert (inside.status_code, inside.json()["sandboxId"]) == (502, sandbox), inside.text
        busy = client.post("/fusion/run_code", json=asked["/fusion/run_code"], headers=bearer)
        assert (busy.status_code, set(busy.json())) == (503, {"detail"}), busy.text


def _as_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
