"""Images at every node, and templates of tenants at the one that built them, by two gateways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

import cellwall
from cellwall.model.errors import CellwallError, NotFound
from cellwall.model.ids import node_of
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.images import archives, registry
from kit.images.archives import layer, member, small_root
from kit.images.registry import ImageRegistry
from kit.postgres_server import Postgres
from kit.servers import ADMIN, ALICE, BOB, MANAGER, error_of
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SMALL = layer(small_root())


@pytest.fixture(scope="module")
def stocked() -> Iterator[ImageRegistry]:
    with registry.running() as made:
        made.add("team/app:1", [SMALL], Env=["PATH=/bin:/usr/bin", "GREETING=hello"])
        made.add("team/python:3", [layer(archives.python_root())])
        yield made


@pytest.fixture(scope="module")
def two(postgres: Postgres, stocked: ImageRegistry) -> Iterator[Cluster]:
    """Two nodes whose operator permits the team's images and templates, behind two gateways."""
    more = f"[engine]\n{stocked.setting()}\nimages_mb = 4000\n"
    permits = {"images": [f"{stocked.host}/team/*"], "templates_mb": 2000}
    url = directory(postgres)
    with cluster(2, 2, directory=url, more=more, at_node=permits, fence_s=6.0) as made:
        yield made


def _connect(made: Cluster, gateway: int, key: str) -> cellwall.Client:
    return cellwall.connect(f"http://127.0.0.1:{made.gateways[gateway].port}", key)


def _nodes(answer: httpx.Response) -> set[str]:
    return {node_of(each["id"]) for each in answer.json()["sandboxes"]}


def test_image_is_pulled_to_every_node_listed_once_and_removed_from_all(
    two: Cluster, stocked: ImageRegistry
) -> None:
    name = stocked.name("team/app:1")
    manager, admin, alice = two.client(0, MANAGER), two.client(0, ADMIN), two.client(1)
    begun = manager.post("/images", json={"image": name, "wait": 30})
    assert begun.status_code == 200, begun.text
    pull = begun.json()
    nodes = set(two.states())
    assert (pull["status"], {each["node"] for each in pull["nodes"]}) == ("here", nodes)
    assert two.client(1, MANAGER).get(f"/images/pulls/{pull['id']}").json() == pull
    assert alice.get(f"/images/pulls/{pull['id']}").status_code == 200
    (listed,) = alice.get("/images").json()["images"]
    assert (listed["names"], set(listed["nodes"])) == ([name], nodes)
    shown = alice.get(f"/images/{listed['id']}").json()
    assert {**shown, "nodes": set(shown["nodes"])} == {**listed, "nodes": nodes}
    asked = stocked.count("team/app/manifests")
    boxes: dict[str, str] = {}

    def is_at_every_node() -> bool:  # one that was slow gets hardly any work for a while
        made = alice.post("/sandboxes", json={"image": name})
        assert made.status_code == 201, made.text
        box = made.json()["id"]
        if boxes.setdefault(node_of(box), box) != box:
            alice.delete(f"/sandboxes/{box}")
        return set(boxes) == nodes

    wait_until(is_at_every_node, "each node has a sandbox on the image")
    assert stocked.count("team/app/manifests") == asked  # no node has pulled it again
    used = admin.delete(f"/images/{listed['id']}")
    assert (used.status_code, error_of(used)["code"]) == (409, "conflict")
    for each in boxes.values():
        alice.delete(f"/sandboxes/{each}")
    wait_until(lambda: admin.delete(f"/images/{listed['id']}").status_code == 200, "it is unused")
    assert alice.get("/images").json() == {"images": []}
    assert admin.delete(f"/images/{listed['id']}").status_code == 404
    assert alice.get(f"/images/{listed['id']}").status_code == 404


def test_sdk_pulls_and_hears_of_a_failure(two: Cluster, stocked: ImageRegistry) -> None:
    with _connect(two, 1, MANAGER) as client:
        image = client.images.pull(stocked.name("team/python:3"))
        assert image["id"] in [each["id"] for each in client.images.list()]
        with pytest.raises(CellwallError, match="none of that name"):
            client.images.pull(stocked.name("team/none:1"))
        with pytest.raises(CellwallError, match="not one that the operator"):
            client.images.pull("other/app:1")
    refused = two.client().post("/images", json={"image": stocked.name("team/app:1")})
    assert (refused.status_code, error_of(refused)["code"]) == (403, "forbidden")


def test_image_that_one_node_has_is_found_by_its_id(two: Cluster, stocked: ImageRegistry) -> None:
    digest = stocked.add("team/mine:1", [SMALL, layer([member("mine", b"x")])])
    alice = two.client()
    made = alice.post("/sandboxes", json={"image": stocked.name("team/mine:1")})  # on demand
    assert made.status_code == 201, made.text
    node = node_of(made.json()["id"])
    (listed,) = [each for each in alice.get("/images").json()["images"] if each["id"] == digest]
    assert listed["nodes"] == [node]
    for gateway in (0, 1) * 3:
        other = two.client(gateway).post("/sandboxes", json={"image": digest})
        assert other.status_code == 201, other.text
        assert node_of(other.json()["id"]) == node
        alice.delete(f"/sandboxes/{other.json()['id']}")
    unknown = alice.post("/sandboxes", json={"image": "sha256:" + "a" * 64})
    assert (unknown.status_code, error_of(unknown)["code"]) == (400, "usage")
    alice.delete(f"/sandboxes/{made.json()['id']}")


def _built(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/templates", json={"wait": 60, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == "built", found
    return found


def test_template_is_used_where_it_was_built(two: Cluster, stocked: ImageRegistry) -> None:
    one, other = two.client(0, MANAGER), two.client(1, MANAGER)
    base = stocked.name("team/app:1")
    nodes = set()
    for number in range(4):
        name = f"task{number}"
        made = _built(one, {"name": f"{name}:1", "from_image": base, "commands": ["echo 1 > /n"]})
        assert other.get(f"/templates/builds/{made['id']}").json()["status"] == "built"
        events = other.get(f"/templates/builds/{made['id']}/events").text
        assert '"type":"end"' in events
        again = _built(other, {"name": f"{name}:2", "from_image": base})
        assert node_of(again["id"]) == node_of(made["id"])  # all tags lie together
        nodes.add(node_of(made["id"]))
        for client in (one, other) * 2:
            box = client.post("/sandboxes", json={"template": f"{name}:1"})
            assert box.status_code == 201, box.text
            assert node_of(box.json()["id"]) == node_of(made["id"])
            assert box.json()["template"] == f"{name}:1"
            client.delete(f"/sandboxes/{box.json()['id']}")
        assert other.get(f"/templates/{name}:1").json()["image"] == made["template"]["image"]
    own = [each["name"] for each in other.get("/templates").json()["own"]]
    assert own == sorted(f"task{n}:{tag}" for n in range(4) for tag in (1, 2))
    assert two.client(1, BOB).get("/templates").json()["own"] == []
    assert two.client(1, BOB).post("/sandboxes", json={"template": "task0:1"}).status_code == 404
    assert {each["name"] for each in other.get("/templates").json()["templates"]} >= {"python"}
    for name in own:
        wait_until(partial(_is_gone, one, name), f"no sandbox is on {name}")
    assert other.get("/templates/task0:1").status_code == 404
    unknown = other.post("/sandboxes", json={"template": "task0:1"})
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "not_found")
    assert "python" in error_of(unknown)["remedy"]  # as a server says it


def _is_gone(client: httpx.Client, name: str) -> bool:
    return client.delete(f"/templates/{name}").status_code == 200


def test_sdk_builds_with_a_context_and_removes(
    two: Cluster, stocked: ImageRegistry, tmp_path: Any
) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(range(256)) * 4096 * 12)  # more than is kept
    text = f"FROM {stocked.name('team/app:1')}\nCOPY large.bin /large.bin\n"
    told: list[str] = []
    with _connect(two, 0, MANAGER) as one, _connect(two, 1, MANAGER) as other:
        made = one.templates.build(
            text, "withdata", context=tmp_path, on_event=lambda event: told.append(event["type"])
        )
        assert made["name"] == "withdata:latest"
        assert "step" in told
        with other.Sandbox(template="withdata") as sandbox:
            assert sandbox.commands.run("[ -s /large.bin ] && echo there").stdout == "there\n"
        wait_until(lambda: _is_removed(other, "withdata"), "no sandbox is on it")
        with pytest.raises(NotFound):
            one.templates.get("withdata")


def _is_removed(client: cellwall.Client, name: str) -> bool:
    try:
        client.templates.remove(name)
    except CellwallError:
        return False
    return True


def test_build_that_fails_says_so_and_its_name_may_be_built_again(
    two: Cluster, stocked: ImageRegistry
) -> None:
    one, other = two.client(0, MANAGER), two.client(1, MANAGER)
    base = stocked.name("team/app:1")
    body = {"name": "bad", "from_image": base, "commands": ["exit 3"]}
    failed = one.post("/templates", json={"wait": 60, **body}).json()
    assert (failed["status"], failed["error"]["exit_code"]) == ("failed", 3)
    made = _built(other, {"name": "bad", "from_image": base})
    assert node_of(made["id"]) == node_of(failed["id"])
    refused = two.client(0, ALICE).post("/templates", json=body)
    assert (refused.status_code, error_of(refused)["code"]) == (403, "forbidden")
    wrong = one.post("/templates", json={"name": "B A D", "from_image": base})
    assert (wrong.status_code, error_of(wrong)["code"]) == (400, "usage")
    assert one.delete("/templates/bad").status_code == 200
