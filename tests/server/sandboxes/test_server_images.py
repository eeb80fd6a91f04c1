"""Images over HTTP, by the SDK and from the command line, from a registry of the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

import cellwall
from cellwall.model.errors import ImageComing
from kit import waiting
from kit.images import archives, registry
from kit.images.archives import layer, member, small_root
from kit.images.registry import ImageRegistry
from kit.servers import ADMIN, ALICE, BOB, MANAGER, Server, error_of, running

pytestmark = pytest.mark.root
SMALL = layer(small_root())


@pytest.fixture(scope="module")
def stocked() -> Iterator[ImageRegistry]:
    with registry.running() as made:
        made.add("team/app:1", [SMALL], Env=["PATH=/bin:/usr/bin", "GREETING=hello"], User="app")
        made.add("team/python:3", [layer(archives.python_root())])
        made.add("other/app:1", [SMALL])
        yield made


@pytest.fixture(scope="module")
def door(stocked: ImageRegistry) -> Iterator[Server]:
    """A server whose operator permits the team's images, and fewer to bob."""
    more = f"""
[engine]
{stocked.setting(credentials="user:word@")}
[tiers.small]
images = ["{stocked.host}/team/python"]
[tenants]
bob = "small"
"""
    with running(more, images=[f"{stocked.host}/team/*"]) as made:
        yield made


def _command(client: httpx.Client, sandbox_id: str, line: str) -> dict[str, Any]:
    place = f"/sandboxes/{sandbox_id}/commands"
    accept = {"Accept": "application/json"}
    answer = client.post(place, json={"command": line}, headers=accept)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_sandbox_on_an_image_that_is_pulled_on_demand(door: Server, stocked: ImageRegistry) -> None:
    client = door.client()
    image = stocked.name("team/app:1")
    made = client.post("/sandboxes", json={"image": image, "user": "root"})
    assert made.status_code == 201, made.text
    assert (made.json()["image"], made.json()["user"]) == (image, "root")
    said = _command(client, made.json()["id"], "id -u; echo $GREETING")
    assert said["stdout"] == "0\nhello\n"
    own = client.post("/sandboxes", json={"image": image})
    assert own.json()["user"] == "app"
    assert _command(client, own.json()["id"], "id -u")["stdout"] == "1001\n"
    assert stocked.count("team/app/manifests") == 1
    audit = door.client(ADMIN).get("/audit", params={"limit": 200}).json()["records"]
    assert image in json.dumps([each for each in audit if each["action"] == "sandbox.create"])
    assert "user:word" not in json.dumps(audit)


def test_program_on_an_image_sync_streamed_in_a_batch_and_in_the_background(
    door: Server, stocked: ImageRegistry
) -> None:
    client = door.client()
    image = stocked.name("team/python:3")
    body = {"code": "import os; print(os.getuid(), sum(range(4)))", "image": image}
    done = client.post("/execute", json=body)
    assert done.status_code == 200, done.text
    assert done.json()["stdout"] == "0 6\n"
    streamed = client.post("/execute", json=body, headers={"Accept": "application/x-ndjson"})
    assert '"0 6\\n"' in streamed.text
    batch = client.post("/executions/batch", json={"executions": [body, {"code": "print(1)"}]})
    assert "0 6" in batch.text
    begun = client.post("/execute", json={**body, "background": True})
    assert begun.status_code == 202, begun.text
    place = f"/executions/{begun.json()['execution_id']}"
    waiting.wait_until(
        lambda: client.get(place, params={"wait": 5}).json().get("stdout") == "0 6\n",
        "the execution in the background ends",
    )
    shell = client.post("/execute", json={"code": "echo $0", "language": "bash", "image": image})
    assert shell.json()["verdict"] == "ok", shell.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"image": "/etc/passwd"}, 400),
        ({"image": "./task.tar"}, 400),
        ({"image": "docker://task"}, 400),
        ({"image": "python:3.12"}, 400),
        ({"image": "OTHER/app:1"}, 400),
        ({"image": "sha256:" + "a" * 64}, 400),
        ({"user": "root"}, 400),
        ({"image": "TEAM", "user": "none"}, 400),
        ({"image": "TEAM", "packages": ["alpha"]}, 400),
        ({"image": 5}, 400),
    ],
)
def test_what_the_operator_does_not_permit(
    door: Server, stocked: ImageRegistry, body: dict[str, Any], status: int
) -> None:
    names = {"TEAM": stocked.name("team/app:1"), "OTHER/app:1": stocked.name("other/app:1")}
    if body.get("image") in names:
        body = {**body, "image": names[body["image"]]}
    client = door.client()
    assert client.post("/sandboxes", json=body).status_code == status
    assert client.post("/execute", json={"code": "1", **body}).status_code == status
    assert stocked.count("other/") == 0


def test_server_without_the_setting_has_no_images(server: Server) -> None:
    client = server.client()
    refused = client.post("/sandboxes", json={"image": "python:3.12"})
    assert refused.status_code == 400
    assert "permits none" in error_of(refused)["message"]
    assert client.get("/images").json() == {"images": []}


def test_tenant_sees_only_what_its_tier_may_name(door: Server, stocked: ImageRegistry) -> None:
    manager, alice, bob = door.client(MANAGER), door.client(ALICE), door.client(BOB)
    name = stocked.name("team/app:1")
    pulled = manager.post("/images", json={"image": name, "wait": 30}).json()
    assert pulled["status"] == "here", pulled
    digest = pulled["image"]["id"]
    assert digest in [each["id"] for each in alice.get("/images").json()["images"]]
    assert alice.get(f"/images/{digest}").json()["names"] == [name]
    assert alice.post("/sandboxes", json={"image": digest}).status_code == 201
    assert digest not in [each["id"] for each in bob.get("/images").json()["images"]]
    for refused in (
        bob.get(f"/images/{digest}"),
        bob.post("/sandboxes", json={"image": digest}),
        bob.post("/sandboxes", json={"image": name}),
        bob.get(f"/images/pulls/{pulled['id']}"),
    ):
        assert refused.status_code in {400, 404}, refused.text
    unknown = bob.post("/sandboxes", json={"image": "sha256:" + "a" * 64})
    known = bob.post("/sandboxes", json={"image": digest})
    assert error_of(known)["message"].replace(digest, "") == error_of(unknown)["message"].replace(
        "sha256:" + "a" * 64, ""
    )


def test_keys_that_pull_and_remove(door: Server, stocked: ImageRegistry) -> None:
    stocked.add("team/gone:1", [layer([member("a", b"one")])])
    name = stocked.name("team/gone:1")
    assert door.client(ALICE).post("/images", json={"image": name}).status_code == 403
    with cellwall.connect(door.address, MANAGER) as client:
        image = client.images.pull(name)
        assert image["id"] in [each["id"] for each in client.images.list()]
        with pytest.raises(cellwall.CellwallError, match="admin is needed"):
            client.images.remove(image["id"])
    with cellwall.connect(door.address, ADMIN) as client:
        client.images.remove(image["id"])
        assert image["id"] not in [each["id"] for each in client.images.list()]
        with pytest.raises(cellwall.CellwallError, match="none of that name"):
            client.images.pull(stocked.name("team/none:1"))


def test_image_in_use_is_not_removed(door: Server, stocked: ImageRegistry) -> None:
    client, admin = door.client(), door.client(ADMIN)
    digest = stocked.add("team/used:1", [SMALL, layer([member("mine", b"x")])])
    made = client.post("/sandboxes", json={"image": stocked.name("team/used:1")}).json()
    refused = admin.delete(f"/images/{digest}")
    assert refused.status_code == 409, refused.text
    assert _command(client, made["id"], "cat /mine")["stdout"] == "x"
    client.delete(f"/sandboxes/{made['id']}")
    assert admin.delete(f"/images/{digest}").status_code == 200
    assert admin.get(f"/images/{digest}").status_code == 404


def test_slow_pull_is_shared_and_its_callers_are_told_to_come_back(
    stocked: ImageRegistry,
) -> None:
    stocked.add("team/slow:1", [SMALL, layer([member("slow")])])
    name = stocked.name("team/slow:1")
    more = f"[engine]\n{stocked.setting()}\n"
    with running(more, images=["*"], image_wait_s=0.2) as server:
        stocked.may_serve.clear()
        try:
            clients = [server.client() for _ in range(8)]

            def create(client: httpx.Client) -> httpx.Response:
                return client.post("/sandboxes", json={"image": name})

            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(create, clients))
            assert {each.status_code for each in answers} == {503}
            assert {error_of(each)["code"] for each in answers} == {"image_coming"}
            assert all(int(each.headers["retry-after"]) >= 1 for each in answers)
            with (
                cellwall.connect(server.address, ALICE) as client,
                pytest.raises(ImageComing, match="on its way"),
            ):
                client.run("1", image=name, timeout=1)
        finally:
            stocked.may_serve.set()
        waiting.wait_until(
            lambda: create(clients[0]).status_code == 201, "the image is here at last"
        )
        assert stocked.count("team/slow/manifests") == 1


def test_images_have_so_much_room_and_those_used_least_recently_go(
    stocked: ImageRegistry,
) -> None:
    small = len(SMALL) >> 20
    names = []
    for number in range(3):
        stocked.add(f"team/n{number}:1", [SMALL, layer([member(f"file{number}")])])
        names.append(stocked.name(f"team/n{number}:1"))
    more = f"[engine]\n{stocked.setting()}\nimages_mb = {small * 5 // 2 + 1}\n"
    with running(more, images=["*"]) as server:
        client = server.client()

        def used(name: str) -> None:
            made = client.post("/sandboxes", json={"image": name})
            assert made.status_code == 201, made.text
            client.delete(f"/sandboxes/{made.json()['id']}")

        def here() -> set[str]:
            found = client.get("/images").json()["images"]
            return {each["names"][0] for each in found}

        used(names[0])
        used(names[1])
        used(names[0])  # the second one was used least recently now
        used(names[2])
        assert here() == {names[0], names[2]}
        kept = [client.post("/sandboxes", json={"image": names[i]}).json()["id"] for i in (0, 2)]
        refused = client.post("/sandboxes", json={"image": names[1]})
        assert refused.status_code == 503, refused.text
        assert "together" in error_of(refused)["message"]
        assert here() == {names[0], names[2]}
        for each in kept:
            assert _command(client, each, "id -u")["exit_code"] == 0


def test_commands_and_terminals_of_another_user(door: Server, stocked: ImageRegistry) -> None:
    """On an image without bash, where a terminal's shell is sh."""
    with cellwall.connect(door.address, ALICE) as client:
        sandbox = client.Sandbox(image=stocked.name("team/app:1"), user="root")
        assert sandbox.commands.run("id -un", user="app").stdout == "app\n"
        assert sandbox.commands.start("id -un", user="app").wait().stdout == "app\n"
        terminal = sandbox.commands.start("id -un", pty=(24, 80), user="app")
        assert terminal.wait().ok
        assert b"app" in terminal.read()
        with pytest.raises(cellwall.CellwallError, match="no user 'missing'"):
            sandbox.commands.run("id", user="missing")
        place = f"/sandboxes/{sandbox.id}/terminal"
        address = f"{door.address.replace('http', 'ws')}{place}?user=app"
        with connect(address, additional_headers={"X-API-Key": ALICE}) as socket:
            socket.send(b"id -u; exit\n")
            said = b"".join(each for each in socket if isinstance(each, bytes))
            assert b"1001" in said
        sandbox.close()


def test_command_line(door: Server, stocked: ImageRegistry) -> None:
    env = {**os.environ, "CELLWALL_URL": door.address, "CELLWALL_API_KEY": ALICE}

    def said(*words: str) -> str:
        argv = [sys.executable, "-m", "cellwall.apps.cli.main", "sandbox", *words]
        done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = said("create", "--image", stocked.name("team/app:1"), "--user", "root").strip()
    assert said("exec", made, "--", "id", "-un") == "root\n"
    assert said("exec", "--user", "app", made, "--", "id", "-un") == "app\n"
    assert said("exec", "--user", "4000:50", made, "--", "id", "-u") == "4000\n"
