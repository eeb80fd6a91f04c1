"""Nodes that a gateway finds: among the endpoints of a Service, in settings that are read again."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster.api_server import ApiServer, api_server, endpoint, endpoint_slice
from kit.cluster.finding import start_finding_gateway, start_pod
from kit.cluster.processes import Cluster, cluster
from kit.servers import ADMIN, run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with api_server() as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path)))
        yield made


@pytest.fixture
def empty() -> Iterator[Cluster]:
    """A cluster without nodes and gateways, but with an authority."""
    with cluster(0, 0) as made:
        yield made


def _listed(made: Cluster) -> list[dict[str, str]]:
    nodes: list[dict[str, str]] = made.client(0, ADMIN).get("/nodes").json()["nodes"]
    return nodes


def _addresses(made: Cluster) -> list[str]:
    return [each["address"] for each in _listed(made) if each["state"] != "lost"]


def test_nodes_are_found_and_outlive_their_api_server(empty: Cluster, api: ApiServer) -> None:
    api.put(endpoint_slice("one", start_pod(empty, "one"), endpoint("a")))
    start_finding_gateway(empty)
    empty.wait_ready(1)
    api.put(endpoint_slice("two", start_pod(empty, "two"), endpoint("b")))
    empty.wait_ready(2)
    alice = empty.client()
    made = [f"/sandboxes/{alice.post('/sandboxes', json={}).json()['id']}" for _ in range(4)]
    for path in made:
        run_cell(alice, path, "x = 7")

    api.stop()
    fences = 3
    for _ in range(2 * fences):  # longer than any fence
        assert alice.post("/execute", json={"code": "import time; time.sleep(1)"}).is_success
    assert [run_cell(alice, path, "print(x)")["stdout"] for path in made] == ["7\n"] * 4
    assert sorted(empty.states().values()) == ["ready", "ready"]

    api.start()
    api.delete("one")
    wait_until(lambda: "draining" in empty.states().values(), "a node that is named no longer")
    assert [run_cell(alice, path, "print(x)")["stdout"] for path in made] == ["7\n"] * 4
    empty.nodes["one"].kill()
    wait_until(lambda: "lost" in empty.states().values(), "the loss of the one that ended")
    wait_until(lambda: len(_addresses(empty)) == 1, "the end of its probes")
    assert _addresses(empty) == [f"127.0.0.1:{empty.nodes['two'].port}"]


def test_found_node_needs_the_name_of_such_nodes_in_its_certificate(
    empty: Cluster, api: ApiServer
) -> None:
    right, wrong = start_pod(empty, "right"), start_pod(empty, "wrong", "127.0.0.1")
    api.put(endpoint_slice("one", right, endpoint("a")))
    api.put(endpoint_slice("two", wrong, endpoint("b")))
    start_finding_gateway(empty)
    empty.wait_ready(1)  # the control
    found = {each["address"]: each for each in _listed(empty)}
    assert found[f"127.0.0.1:{wrong}"]["state"] == "unknown"
    log = empty.gateways[0].log
    assert empty.client().post("/execute", json={"code": "print(1)"}).is_success
    assert "Traceback" not in log.read_text(encoding="utf-8")


def test_listed_node_needs_its_address_in_its_certificate(empty: Cluster) -> None:
    start_pod(empty, "right", "127.0.0.1")
    start_pod(empty, "wrong")
    empty.start_gateway()
    empty.wait_ready(1)  # the control
    assert sorted(each["state"] for each in _listed(empty)) == ["ready", "unknown"]


def test_settings_are_read_again_at_a_signal() -> None:
    with cluster(1) as made:
        made.start_node("late")
        gateway = made.gateways[0]
        path = gateway.log.parent / "cellwall.toml"
        text = path.read_text(encoding="utf-8")
        first, late = (f'"127.0.0.1:{made.ports[name]}"' for name in ("node-0", "late"))

        def told(nodes: str) -> None:
            path.write_text(re.sub(r"nodes = \[.*\]", f"nodes = [{nodes}]", text))
            gateway.popen.send_signal(signal.SIGHUP)

        told(f"{first}, {late}")
        made.wait_ready(2)
        sandbox = f"/sandboxes/{made.client().post('/sandboxes', json={}).json()['id']}"
        told('"no address"')
        wait_until(lambda: "the former ones stay" in gateway.log.read_text(), "the refusal")
        assert sorted(made.states().values()) == ["ready", "ready"]
        told(late)
        wait_until(lambda: "draining" in made.states().values(), "the end of its naming")
        assert run_cell(made.client(), sandbox, "print(2)")["stdout"] == "2\n"
