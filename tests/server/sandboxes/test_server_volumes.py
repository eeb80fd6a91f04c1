"""Volumes over HTTP and by the SDK: what outlives sandboxes, whose they are, and how much."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import cellwall
from cellwall.model.errors import Conflict, NotFound, QuotaExceeded, UsageError
from conftest import Require
from kit.servers import ADMIN, ALICE, BOB, Server, error_of, running

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def door(require: Require) -> Iterator[Server]:
    """A server whose operator gives each tenant 64 MiB of volumes."""
    require("mkfs.ext4", shutil.which("mkfs.ext4") is not None, "run: apt-get install e2fsprogs")
    with running(volumes_mb=64) as made:
        yield made


def test_files_outlive_the_sandbox(door: Server) -> None:
    client = door.client()
    made = client.post("/volumes", json={"name": "kept", "size_mb": 16})
    assert made.status_code == 201, made.text
    assert (made.json()["size_mb"], made.json()["used_bytes"]) == (16, 0)
    asked = {"volumes": {"kept": "/data"}}
    box = client.post("/sandboxes", json=asked)
    assert box.status_code == 201, box.text
    assert box.json()["volumes"] == {"kept": "/data"}
    place = f"/sandboxes/{box.json()['id']}"
    accept = {"Accept": "application/json"}
    wrote = client.post(
        f"{place}/commands", json={"command": "echo content > /data/file"}, headers=accept
    )
    assert wrote.json()["exit_code"] == 0, wrote.text
    busy = client.delete("/volumes/kept")
    assert (busy.status_code, error_of(busy)["code"]) == (409, "conflict")
    assert client.delete(place).status_code == 200
    code = "print(open('/data/file').read())"
    read = client.post("/execute", json={"code": code, "volumes": {"kept": "/data:ro"}})
    assert read.json()["stdout"] == "content\n\n", read.text
    copied = client.post("/volumes/kept/copy", json={"name": "copy"})
    assert copied.status_code == 201, copied.text
    assert [each["name"] for each in client.get("/volumes").json()["volumes"]] == ["copy", "kept"]
    for name in ("kept", "copy"):
        assert client.delete(f"/volumes/{name}").status_code == 200
    assert client.get("/volumes/kept").status_code == 404
    audit = door.client(ADMIN).get("/audit", params={"limit": 200}).json()["records"]
    assert {"volume.create", "volume.copy", "volume.remove"} <= {each["action"] for each in audit}


def test_tenants_have_volumes_of_their_own(door: Server) -> None:
    """The control is the owner, who has it all the time."""
    alice, bob = door.client(ALICE), door.client(BOB)
    assert alice.post("/volumes", json={"name": "mine", "size_mb": 8}).status_code == 201
    asked = {"volumes": {"mine": "/data"}}
    try:
        assert bob.get("/volumes").json() == {"volumes": []}
        for answer in (
            bob.get("/volumes/mine"),
            bob.delete("/volumes/mine"),
            bob.post("/volumes/mine/copy", json={"name": "taken"}),
            bob.post("/sandboxes", json=asked),
            bob.post("/execute", json={"code": "print(1)", **asked}),
        ):
            assert answer.status_code == 404, answer.text
        assert bob.post("/volumes", json={"name": "mine", "size_mb": 8}).status_code == 201
        assert bob.delete("/volumes/mine").status_code == 200
        code = "import os; print(os.path.isdir('/data'))"
        own = alice.post("/execute", json={"code": code, **asked})
        assert own.json()["stdout"] == "True\n", own.text
    finally:
        assert alice.delete("/volumes/mine").status_code == 200


def test_room_of_a_tenant_is_bounded(door: Server) -> None:
    client = door.client()
    assert client.post("/volumes", json={"name": "most", "size_mb": 60}).status_code == 201
    for answer in (
        client.post("/volumes", json={"name": "more", "size_mb": 5}),
        client.post("/volumes/most/copy", json={"name": "more"}),
    ):
        assert (answer.status_code, error_of(answer)["code"]) == (429, "quota"), answer.text
    fits = client.post("/volumes", json={"name": "more", "size_mb": 4})
    assert fits.status_code == 201, fits.text
    for name in ("most", "more"):
        assert client.delete(f"/volumes/{name}").status_code == 200


@pytest.mark.parametrize(
    "volumes", [{"a": "/usr"}, {"a": "data"}, {"../a": "/data"}, {"a": "/d:x"}, {"a": 5}, ["a"]]
)
def test_volumes_that_cannot_be(door: Server, volumes: Any) -> None:
    client = door.client()
    for place, more in (("/sandboxes", {}), ("/execute", {"code": "print(1)"})):
        answer = client.post(place, json={**more, "volumes": volumes})
        assert answer.status_code == 400, answer.text


def test_operator_that_permits_none(server: Server) -> None:
    client = server.client()
    for place, body in (
        ("/volumes", {"name": "a"}),
        ("/sandboxes", {"volumes": {"a": "/data"}}),
        ("/execute", {"code": "print(1)", "volumes": {"a": "/data"}}),
    ):
        answer = client.post(place, json=body)
        assert answer.status_code == 400, answer.text
        assert "operator permits none" in json.dumps(answer.json())


def test_sdk(door: Server) -> None:
    with cellwall.connect(door.address, ALICE) as client:
        made = client.volumes.create("data", 8)
        assert made["size_mb"] == 8
        with client.Sandbox(volumes={"data": "/data"}) as sandbox:
            sandbox.files.write("/data/one", "1")
            with pytest.raises(Conflict):
                client.Sandbox(volumes={"data": "/data"})
        assert client.run("print(open('/data/one').read())", volumes={"data": "/data:ro"}).ok
        client.volumes.copy("data", "copy")
        assert [each["name"] for each in client.volumes.list()] == ["copy", "data"]
        with pytest.raises(QuotaExceeded):
            client.volumes.create("large", 64)
        with pytest.raises(UsageError):
            client.run("print(1)", volumes=["data"])
        for name in ("data", "copy"):
            client.volumes.remove(name)
        with pytest.raises(NotFound):
            client.volumes.get("data")
