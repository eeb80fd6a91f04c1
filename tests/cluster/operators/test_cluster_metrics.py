"""A gateway's metrics: what docs/cluster.md lists is what there is, and it counts."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from kit.cluster.processes import Cluster, cluster
from kit.places import ROOT
from kit.servers import ADMIN, metrics_address
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def one() -> Iterator[tuple[Cluster, str]]:
    """A node, a gateway, and where its metrics are."""
    with cluster(1, gateways=0) as made:
        made.start_gateway(metrics_port=0)
        made.wait_ready(1)
        yield made, metrics_address(made.gateways[0])


def _value(page: str, series: str) -> float:
    found = re.search(rf"^cellwall_gateway_{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_table_of_metrics_is_complete(one: tuple[Cluster, str]) -> None:
    types = re.findall(r"^# TYPE (cellwall_\w+)", httpx.get(one[1]).text, re.MULTILINE)
    found = {each for each in types if not each.endswith("_created")}
    assert len(found) > 8
    listed = re.findall(r"^\| `(cellwall_gateway_\w+)` \|", PAGE, re.MULTILINE)
    assert set(listed) == found
    assert len(listed) == len(found)


def test_requests_are_counted_by_kind_and_status(one: tuple[Cluster, str]) -> None:
    made, address = one
    before = httpx.get(address).text
    alice = made.client()
    assert alice.post("/execute", json={"code": "1"}).status_code == 200
    assert alice.post("/execute", json={"code": 7}).status_code == 400
    assert made.client(key=None).post("/execute", json={"code": "1"}).status_code == 401
    assert alice.get("/sandboxes").status_code == 200
    assert alice.post("/executions/batch", json={"executions": [{"code": "1"}]}).status_code == 200
    page = httpx.get(address).text
    for series, count in (
        ('requests_total{kind="new",status="200"}', 1),
        ('requests_total{kind="new",status="400"}', 1),
        ('requests_total{kind="new",status="401"}', 1),
        ('requests_total{kind="all",status="200"}', 1),
        ('requests_total{kind="batch",status="200"}', 1),
        ('tries_total{end="whole"}', 3),
        ("refused_keys_total", 1),
    ):
        assert _value(page, series) - _value(before, series) == count, series
    assert _value(page, 'nodes{state="ready"}') == 1
    assert _value(page, "places_free_ratio") == 1
    assert _value(page, "sandboxes_fill_ratio") == 0
    session = alice.post("/sandboxes", json={}).json()["id"]
    wait_until(
        lambda: _value(httpx.get(address).text, "sandboxes_fill_ratio") > 0, "a probe tells of it"
    )
    alice.delete(f"/sandboxes/{session}")


def test_metrics_have_a_listener_of_their_own(one: tuple[Cluster, str]) -> None:
    made, address = one
    assert made.client().get("/metrics").status_code == 404
    assert httpx.get(address.replace("/metrics", "/health")).status_code == 404


def test_targets_are_the_metrics_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    port = _unused_port()
    with cluster(1, gateways=0) as made:
        made.nodes["node-0"].stop()
        with monkeypatch.context() as patch:
            patch.setenv("CELLWALL_METRICS_PORT", str(port))
            made.start_node("node-0")
        made.start_gateway()
        made.wait_ready(1)
        assert made.client().get("/nodes/http_sd").status_code == 403
        found = made.client(key=ADMIN).get("/nodes/http_sd").json()
        (name,) = made.states()
        assert found == [{"targets": [f"127.0.0.1:{port}"], "labels": {"node": name}}]
        assert "cellwall_sandboxes" in httpx.get(f"http://127.0.0.1:{port}/metrics").text


def _unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
