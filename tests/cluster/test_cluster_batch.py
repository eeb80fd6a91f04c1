"""Many programs through a gateway: all of them, once each, over all nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cellwall.model.ids import node_of
from kit.cluster.processes import Cluster, cluster
from kit.servers import lines_of
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

MANY = 120


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@pytest.fixture
def alice(two: Cluster) -> httpx.Client:
    return two.client()


def _results(answer: httpx.Response) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    *lines, end = lines_of(answer)
    assert end["type"] == "end"
    found = {each["index"]: each for each in lines}
    assert len(found) == len(lines) == end["count"]
    return found, end


@pytest.mark.parametrize("is_lined", [False, True])
def test_every_program_has_its_result_and_both_nodes_work(
    alice: httpx.Client, *, is_lined: bool
) -> None:
    programs = [{"code": f"print({number})"} for number in range(MANY)]
    if is_lined:
        text = "\n".join(json.dumps(each) for each in programs)
        kind = {"content-type": "application/x-ndjson"}
        answer = alice.post("/executions/batch", content=text.encode(), headers=kind)
    else:
        answer = alice.post("/executions/batch", json={"executions": programs, "concurrency": 8})
    found, end = _results(answer)
    assert (end["count"], end["failed"]) == (MANY, 0)
    assert [found[number]["stdout"] for number in range(MANY)] == [f"{n}\n" for n in range(MANY)]
    assert len({node_of(each["execution_id"]) for each in found.values()}) == 2


def test_a_bad_program_fails_itself_alone(alice: httpx.Client) -> None:
    programs: list[object] = [
        {"code": "1"},
        {"code": 7},
        "x",
        {"code": "print(2)", "limits": {"no": 1}},
    ]
    text = "\n".join(json.dumps(each) for each in programs).encode()
    kind = {"content-type": "application/x-ndjson"}
    found, end = _results(alice.post("/executions/batch", content=text, headers=kind))
    assert end["failed"] == 3
    assert found[0]["verdict"] == "ok"
    assert {found[number]["error"]["code"] for number in (1, 2, 3)} == {"usage"}


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"executions": []}', b"nonsense", b"[1]", b'{"executions": ["x"]}']
)
def test_what_is_no_batch_is_refused_whole(alice: httpx.Client, body: bytes) -> None:
    kind = {"content-type": "application/json"}
    answer = alice.post("/executions/batch", content=body, headers=kind)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "usage"), answer.text


def test_client_that_leaves_ends_what_runs(two: Cluster, alice: httpx.Client) -> None:
    programs = [{"code": "import time; time.sleep(600)"}] * 4
    with (
        pytest.raises(httpx.ReadTimeout),
        alice.stream(
            "POST", "/executions/batch", json={"executions": programs}, timeout=2
        ) as answer,
    ):
        for _ in answer.iter_lines():
            pass
    wait_until(lambda: alice.get("/quota").json()["use"]["running"] == 0, "they have ended")


def test_batch_has_every_end_when_a_node_is_killed() -> None:
    with cluster(2, fence_s=6.0) as made:
        alice = made.client()
        programs = [{"code": f"import time; time.sleep(0.05); print({n})"} for n in range(200)]
        found: dict[int, dict[str, Any]] = {}
        with alice.stream("POST", "/executions/batch", json={"executions": programs}) as answer:
            for line in answer.iter_lines():
                value = json.loads(line)
                if value.get("type") is None:
                    found[value["index"]] = value
                if len(found) == 40:
                    made.nodes["node-0"].kill()
        assert set(found) == set(range(200))
        lost = [each for each in found.values() if "verdict" not in each]
        assert all(each["error"]["code"] == "node_lost" for each in lost)
        assert len(lost) <= 32
        for number, each in found.items():
            assert "verdict" not in each or each["stdout"] == f"{number}\n"
