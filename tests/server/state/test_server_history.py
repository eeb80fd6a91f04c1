"""Checkpoints over HTTP, by the SDK and by the command line: whose they are, and how much."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import cellwall
from cellwall.model.errors import NotFound, QuotaExceeded
from kit.servers import ADMIN, ALICE, BOB, Server, error_of, new_sandbox, run_cell, running

ARGV = [sys.executable, "-m", "cellwall.apps.cli.main"]
MAKE = "open('a','w').write('one\\n'); open(b'odd-\\xff','w').write('x')"
SPOIL = "import os; open('a','w').write('two\\n'); os.remove(b'odd-\\xff'); open('new','w')"


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server that gives each tenant 2 MiB for checkpoints."""
    with running("[tiers.default]\nhistory_mb = 2\n") as made:
        yield made


def _audited(server: Server, of: str) -> set[str]:
    """What the audit has of one object, however many records came before."""
    admin, after, found = server.client(ADMIN), 0, set()
    while True:
        page = admin.get("/audit", params={"limit": 200, "after": after}).json()
        found |= {each["action"] for each in page["records"] if of in str(each)}
        if page["next"] is None:
            return found
        after = page["next"]


def test_a_work_area_is_kept_compared_and_rolled_back(server: Server) -> None:
    client = server.client()
    place = f"/sandboxes/{(sandbox := new_sandbox(client))}/checkpoints"
    run_cell(client, f"/sandboxes/{sandbox}", MAKE)
    made = client.post(place, json={"name": "before"})
    assert made.status_code == 201, made.text
    one = made.json()
    assert (one["name"], one["files"], one["bytes"]) == ("before", 2, 5)
    assert client.get(place).json() == {"checkpoints": [one]}
    run_cell(client, f"/sandboxes/{sandbox}", SPOIL)
    diff = client.get(f"{place}/{one['id']}/diff").json()
    found = {each["path"]: (each["kind"], each["size_after"]) for each in diff["changes"]}
    assert found == {
        "a": ("modified", 4), "new": ("added", 0), "odd-\udcff": ("deleted", None)
    }  # fmt: skip
    text = client.get(f"{place}/{one['id']}/diff", params={"path": "a"}).json()["text"]
    assert text == "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n"
    done = client.post(f"{place}/{one['id']}/rollback")
    assert done.status_code == 200, done.text
    assert done.json()["removed"] == 1
    assert client.get(f"{place}/{one['id']}/diff").json()["changes"] == []
    assert client.delete(f"{place}/{one['id']}").status_code == 200
    gone = client.post(f"{place}/{one['id']}/rollback")
    assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found")
    wanted = {"checkpoint.create", "checkpoint.rollback", "checkpoint.drop"}
    assert wanted <= _audited(server, f"sandbox:{sandbox}")


def test_rollback_under_a_running_command_is_a_conflict(server: Server) -> None:
    client = server.client()
    sandbox = new_sandbox(client)
    place = f"/sandboxes/{sandbox}/checkpoints"
    made = client.post(place, json={}).json()["id"]
    body = {"argv": ["sleep", "60"], "background": True}
    assert client.post(f"/sandboxes/{sandbox}/commands", json=body).status_code == 201
    refused = client.post(f"{place}/{made}/rollback")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict")


def test_checkpoints_are_of_one_sandbox_and_one_tenant(server: Server) -> None:
    """The control is the owner, whose rollback works."""
    client, other = server.client(), server.client(BOB)
    hers, second = new_sandbox(client), new_sandbox(client)
    made = client.post(f"/sandboxes/{hers}/checkpoints", json={}).json()["id"]
    for who, sandbox in ((other, hers), (other, new_sandbox(other)), (client, second)):
        for method, end in (("GET", "/diff"), ("POST", "/rollback"), ("DELETE", "")):
            answer = who.request(method, f"/sandboxes/{sandbox}/checkpoints/{made}{end}")
            assert answer.status_code == 404, answer.text
    assert client.post(f"/sandboxes/{hers}/checkpoints/{made}/rollback").status_code == 200


def test_checkpoints_of_a_tenant_have_a_quota(small: Server) -> None:
    client, other = small.client(), small.client(BOB)
    boxes = [new_sandbox(client), new_sandbox(client)]
    for box in boxes:
        run_cell(
            client, f"/sandboxes/{box}", "import os; open('big', 'wb').write(os.urandom(1_200_000))"
        )
    assert client.post(f"/sandboxes/{boxes[0]}/checkpoints", json={}).status_code == 201
    refused = client.post(f"/sandboxes/{boxes[1]}/checkpoints", json={})
    assert (refused.status_code, error_of(refused)["quota"]) == (429, "history_mb")
    shown = client.get("/quota").json()
    assert (shown["quotas"]["history_mb"], shown["use"]["history_mb"]) == (2, 2)
    assert other.get("/quota").json()["use"]["history_mb"] == 0
    assert client.delete(f"/sandboxes/{boxes[0]}").status_code == 200
    assert client.post(f"/sandboxes/{boxes[1]}/checkpoints", json={}).status_code == 201


def test_both_faces_of_the_sdk_have_it(server: Server) -> None:
    with cellwall.connect(server.address, api_key=ALICE) as client, client.Sandbox() as sandbox:
        sandbox.files.write("a", "one\n")
        made = sandbox.files.checkpoint("first")
        sandbox.files.write("a", "two\n")
        assert [each.path for each in sandbox.files.diff()] == ["a"]
        assert "+two" in sandbox.files.diff_text("a", made.id)
        assert sandbox.files.rollback(made.id).restored == 1
        assert sandbox.files.read("a") == "one\n"

        def failing() -> None:
            with sandbox.files.transaction():
                sandbox.run("open('a', 'w').write('three')")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            failing()
        assert sandbox.files.read("a") == "one\n"
        assert [each.name for each in sandbox.files.checkpoints()] == ["first"]
        sandbox.files.drop(made.id)
        with pytest.raises(NotFound, match="there is none"):
            sandbox.files.diff()

    async def asynchronously() -> None:
        async with (
            await cellwall.aconnect(server.address, api_key=ALICE) as client,
            await client.create_sandbox() as sandbox,
        ):
            async with sandbox.files.transaction() as made:
                await sandbox.files.write("x", "x")
                assert [each.kind for each in await sandbox.files.diff(made.id)] == ["added"]
            assert await sandbox.files.read("x") == "x"

    asyncio.run(asynchronously())


def test_quota_is_the_same_error_by_the_sdk(small: Server) -> None:
    with cellwall.connect(small.address, api_key=ALICE) as client, client.Sandbox() as sandbox:
        sandbox.files.write("big", os.urandom(3 << 20))
        with pytest.raises(QuotaExceeded) as refused:
            sandbox.files.checkpoint()
        assert refused.value.quota == "history_mb"


def test_command_line_keeps_shows_and_rolls_back(server: Server) -> None:
    client = server.client()
    sandbox = new_sandbox(client)
    environ = {**os.environ, "CELLWALL_URL": server.address, "CELLWALL_API_KEY": ALICE}

    def run(*words: str) -> str:
        done = subprocess.run(
            [*ARGV, "sandbox", *words], capture_output=True, check=True, env=environ, timeout=50
        )
        return done.stdout.decode()

    run_cell(client, f"/sandboxes/{sandbox}", MAKE)
    made = run("checkpoint", sandbox, "--name", "first").strip()
    run_cell(client, f"/sandboxes/{sandbox}", SPOIL + "; open('esc\\x1b[2J', 'w')")
    assert made in run("checkpoint", sandbox, "--list")
    listed = run("diff", sandbox).splitlines()
    assert {"M a", "A new"} <= set(listed)
    assert "\x1b" not in "".join(listed)
    assert "+two" in run("diff", sandbox, "a", "--since", made)
    assert {each["path"] for each in json.loads(run("diff", sandbox, "--json"))} >= {"a", "new"}
    assert run("rollback", sandbox).strip().endswith("2 removed")
    assert run("diff", sandbox) == ""
    run("checkpoint", sandbox, "--drop", made)
    assert json.loads(run("checkpoint", sandbox, "--list", "--json")) == []
