"""A server that is one of several: what its users see begins with its name, and nothing else does.

The other servers of this suite are the control: they have no name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from cellwall.apps.serve import opened
from cellwall.apps.settings_loader import load
from cellwall.cluster.node.offers import Offers
from cellwall.model.ids import new_id, node_of
from cellwall.runtimes.jail.sandbox import JailSandbox
from cellwall.server.app import create_app
from cellwall.server.auth.keys import KeyRing
from cellwall.server.auth.tokens import node_of_token
from cellwall.server.core.times import steady
from cellwall.server.executions.idempotency import Replays
from cellwall.server.http.face import OwnFace
from kit.images import registry
from kit.images.archives import layer, small_root
from kit.server.crashes import house
from kit.server.kept_house import change_record, kept
from kit.servers import ALICE, MANAGER, configuration, error_of, new_sandbox, running, state_of

if TYPE_CHECKING:
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find
    from cellwall.server.state import State

pytestmark = pytest.mark.root
NODE = "a7c2"
OFFER = "x-offered-id"


def seen(client: httpx.Client) -> dict[str, str]:
    """Make one of everything that has an id of its own; return the ids."""
    sandbox = new_sandbox(client)
    path = f"/sandboxes/{sandbox}"
    as_json = {"Accept": "application/json"}
    cell = client.post(f"{path}/execute", json={"code": "1"}, headers=as_json).json()
    once = client.post("/execute", json={"code": "1"}).json()
    queued = client.post("/execute", json={"code": "1", "background": True}).json()
    ran = client.post(f"{path}/commands", json={"argv": ["true"], "background": True}).json()
    forked = client.post(f"{path}/fork", json={}).json()["forks"][0]["sandbox"]
    kept = client.post(f"{path}/snapshots", json={}).json()
    back = client.post(f"/snapshots/{kept['id']}/restore", json={}).json()
    return {
        "sandbox": sandbox, "cell": cell["execution_id"], "cell's sandbox": cell["sandbox_id"],
        "program": once["execution_id"], "program's sandbox": once["sandbox_id"],
        "background": queued["execution_id"], "command": ran["id"], "fork": forked["id"],
        "snapshot": kept["id"], "restored": back["id"],
    }  # fmt: skip


def tokens(client: httpx.Client) -> tuple[str, str]:
    """Return a signed address' token and a port's."""
    path = f"/sandboxes/{new_sandbox(client)}"
    client.put(f"{path}/files", params={"path": "f"}, content=b"here")
    url = client.post(f"{path}/files/sign", json={"path": "f", "operation": "read"}).json()["url"]
    assert httpx.get(url).content == b"here"
    port = client.post(f"{path}/ports/sign", json={"port": 8000}).json()
    assert port["url"].endswith(f"cellwall_token={port['token']}")
    return url.rpartition("/signed/")[2], port["token"]


def test_ids_and_tokens_begin_with_the_name() -> None:
    with running(node=NODE, warm=["python"]) as server:
        client = server.client()
        found = seen(client)
        assert {name: node_of(each) for name, each in found.items()} == dict.fromkeys(found, NODE)
        assert [node_of_token(each) for each in tokens(client)] == [NODE, NODE]
        for kind in ("sandboxes", "executions"):
            for other in (new_id(NODE), new_id("b7c2"), new_id()):
                assert client.get(f"/{kind}/{other}").status_code == 404


def test_pulls_and_builds_begin_with_the_name() -> None:
    with registry.running() as stocked:
        stocked.add("team/base:1", [layer(small_root())])
        name, more = stocked.name("team/base:1"), f"[engine]\n{stocked.setting()}"
        permitted = {"images": [f"{stocked.host}/team/*"], "templates_mb": 500}
        with running(more, node=NODE, warm=[], **permitted) as server:
            client = server.client(MANAGER)
            pull = client.post("/images", json={"image": name, "wait": 40}).json()
            build = client.post("/templates", json={"name": "a", "from_image": name, "wait": 40})
            assert build.status_code in {200, 202}, build.text
            assert [node_of(each) for each in (pull["id"], build.json()["id"])] == [NODE, NODE]
            assert client.get(f"/images/pulls/{pull['id']}").json()["id"] == pull["id"]


def test_server_alone_has_ids_without_a_name(tmp_path: Path) -> None:
    with house(tmp_path) as it:
        client = it.start().client()
        for each in seen(client).values():
            assert re.fullmatch("[a-z2-7]{26}", each)
        assert all(re.fullmatch(r"[\w-]+", each) for each in tokens(client))
        assert not (state_of(tmp_path) / "server" / "node").exists()


def test_drawn_name_outlives_the_server(tmp_path: Path) -> None:
    with house(tmp_path, node="auto") as it:
        names = []
        for _ in range(2):
            server = it.start()
            answer = server.client().post("/execute", json={"code": "1"}).json()
            names.append(node_of(answer["execution_id"]))
            it.kill(server)
        assert names[0]
        assert names == [names[0]] * 2
        assert (state_of(tmp_path) / "server" / "node").read_text() == names[0] + "\n"


# -- in this process: ids that a trusted listener offers -----------------------------------------


class Trusted(OwnFace):
    """A face that stands for a listener which only a gateway reaches."""

    def principal(self, request: Request, find: Find) -> Principal | None:
        request.origin.offered_id = request.headers.get(OFFER, "")
        return super().principal(request, find)


def served(folder: Path, work: Any, **settings: object) -> None:
    """Do `work` with the state of a server in this process."""

    async def run() -> None:
        config = folder / "cellwall.toml"
        config.write_text(configuration(**{"warm": [], **settings}))
        loaded = load(config, {}, {})
        loaded = replace(loaded, engine=replace(loaded.engine, node=loaded.server.node))
        async with opened(loaded, KeyRing(loaded.keys), state_of(folder)) as state:
            if state.audit is not None:
                await state.audit.open({})
            await state.open()
            await work(state)

    asyncio.run(run())


def client_of(state: State, *, is_trusted: bool) -> httpx.AsyncClient:
    face = Trusted(state.tokens) if is_trusted else None
    transport = httpx.ASGITransport(create_app(state, face=face))
    headers = {"X-API-Key": ALICE, "Accept": "application/json"}
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


async def asked(
    client: httpx.AsyncClient, path: str, body: Mapping[str, object], offered: str
) -> httpx.Response:
    return await client.post(path, json=dict(body), headers={OFFER: offered})


def test_offered_ids_are_taken_from_the_trusted_listener_once(tmp_path: Path) -> None:
    async def work(state: State) -> None:
        async with client_of(state, is_trusted=True) as client:
            offered = ""
            for path, body, name in (
                ("/execute", {"code": "1"}, "execution_id"),
                ("/execute", {"code": "1", "background": True}, "execution_id"),
                ("/sandboxes", {}, "id"),
            ):
                offered = new_id(NODE)
                made = await asked(client, path, body, offered)
                assert made.json()[name] == offered, made.text
                again = await asked(client, path, body, offered)
                assert (again.status_code, error_of(again)["code"]) == (409, "conflict")
                for other in (new_id("b7c2"), new_id(), "../" + offered):
                    refused = await asked(client, path, body, other)
                    assert (refused.status_code, error_of(refused)["code"]) == (400, "usage")
            sandbox = f"/sandboxes/{offered}"
            cell = new_id(NODE)
            ran = (await asked(client, f"{sandbox}/execute", {"code": "print(1)"}, cell)).json()
            assert (ran["execution_id"], ran["sandbox_id"]) == (cell, offered)
            found = (await client.get(f"/executions/{cell}")).json()
            assert (found["execution_id"], found["stdout"]) == (cell, "1\n")
            kept = (await client.post(f"{sandbox}/snapshots", json={})).json()["id"]
            back = new_id(NODE)
            restored = await asked(client, f"/snapshots/{kept}/restore", {}, back)
            assert restored.json()["id"] == back, restored.text
            assert (await client.delete(sandbox)).json()["message"] == "deleted"

    served(tmp_path, work, node=NODE)


def test_id_whose_object_is_no_longer_kept_is_known_by_its_key(tmp_path: Path) -> None:
    async def work(state: State) -> None:
        assert state.store is not None
        app = create_app(state, Offers().endpoints, Trusted(state.tokens))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://localhost",
            headers={"X-API-Key": ALICE, "Accept": "application/json"},
        ) as client:
            offered, key = new_id(NODE), {"idempotency-key": "k1"}
            body, headers = {"code": "1"}, {OFFER: offered, **key}
            made = await client.post("/execute", json=body, headers=headers)
            assert made.json()["execution_id"] == offered, made.text
            settled = (await client.get(f"/node/ids/{offered}")).json()
            assert (settled["has_begun"], settled["is_gone"]) == (True, False)
            while state.executions.has(offered):
                state.executions.expire()
            await state.store.expire(steady() - state.settings.retention_s)
            state.replays = Replays(state.store)  # what memory has is of no matter
            found = [
                (await client.get(f"/node/ids/{each}", headers=named)).json()
                for each, named in ((offered, key), (new_id(NODE), key), (offered, {}))
            ]
            shown = [(each["has_begun"], each["is_gone"]) for each in found]
            assert shown == [(True, True), (False, False), (False, False)]
            assert found[0]["knows_s"] == 86_400
            again = await client.post("/execute", json=body, headers=key)
            assert error_of(again)["code"] == "gone"  # what a server alone says

    served(tmp_path, work, node=NODE, retention_s=0.01)


def test_server_without_a_store_knows_keys_since_it_began(tmp_path: Path) -> None:
    async def work(state: State) -> None:
        assert state.store is None
        before = state.replays.known_s
        assert 0 <= before < 60
        client = client_of(state, is_trusted=True)
        offered, key = new_id(NODE), {"idempotency-key": "k1"}
        await client.post("/execute", json={"code": "1"}, headers={OFFER: offered, **key})
        owner = next(iter(state.replays._uses))[0]
        assert await state.replays.made(owner, "k1", offered)
        assert not await state.replays.made(owner, "k2", offered)
        assert state.replays.known_s > before

    served(tmp_path, work, node=NODE, store="none")


def test_parked_sandbox_gets_the_offered_id(tmp_path: Path) -> None:
    async def work(state: State) -> None:
        async with client_of(state, is_trusted=True) as client:
            await client.post("/sandboxes", json={})
            await state.engine.pool.wait_full()
            before, offered = state.engine.pool.statistics().claims_parked, new_id(NODE)
            made = await asked(client, "/sandboxes", {"network": ["example.org"]}, offered)
            assert made.json()["id"] == offered, made.text
            plain = await asked(client, "/sandboxes", {}, other := new_id(NODE))
            assert plain.json()["id"] == other
            assert state.engine.pool.statistics().claims_parked > before
            found = await client.get(f"/sandboxes/{offered}/network")
            assert found.status_code == 200, found.text
            for each in (offered, other):
                ran = await client.post(f"/sandboxes/{each}/execute", json={"code": "print(2)"})
                assert ran.json()["stdout"] == "2\n"
                assert (await client.delete(f"/sandboxes/{each}")).json()["message"] == "deleted"

    served(tmp_path, work, node=NODE)


def test_kept_sandbox_has_its_offered_id_in_the_next_server(tmp_path: Path) -> None:
    """Also if that cannot take it over: its owner is told why."""
    ids = [new_id(NODE), new_id(NODE)]
    runtimes: list[str] = []

    async def make(state: State) -> None:
        async with client_of(state, is_trusted=True) as client:
            await client.post("/sandboxes", json={})
            await state.engine.pool.wait_full()
            for each in ids:
                assert (await asked(client, "/sandboxes", {}, each)).json()["id"] == each
                await client.post(f"/sandboxes/{each}/execute", json={"code": "x = 41"})
                sandbox = state.engine.sandbox(each)
                assert sandbox is not None
                held = sandbox.live.runtime_sandbox
                assert isinstance(held, JailSandbox)
                runtimes.append(held._spec.sandbox_id)

    async def look(state: State) -> None:
        async with client_of(state, is_trusted=True) as client:
            said = await client.post(f"/sandboxes/{ids[0]}/execute", json={"code": "print(x + 1)"})
            assert said.json()["stdout"] == "42\n"
            gone = (await client.get(f"/sandboxes/{ids[1]}")).json()
            assert gone["status"] == "stopped"
            assert gone["ended_because"].startswith("upgraded")
            again = await asked(client, "/sandboxes", {}, ids[1])
            assert again.status_code == 409

    with kept(tmp_path) as it:
        served(tmp_path, make, node=NODE, keep_sessions=True)
        assert not set(runtimes) & set(ids)  # they were parked under ids of their own
        change_record(it, runtimes[1], policy=lambda _: "0" * 64)
        served(tmp_path, look, node=NODE, keep_sessions=True)


def test_node_with_another_name_goes_on_with_nothing_of_its_lost_one(tmp_path: Path) -> None:
    """Control: with the name that it had it does."""
    ids: dict[str, str] = {}

    async def make(state: State) -> None:
        state.executions.hold("test", is_held=True)
        async with client_of(state, is_trusted=True) as client:
            ids["sandbox"] = (await client.post("/sandboxes", json={})).json()["id"]
            program = {"code": "print(1)", "background": True}
            ids["program"] = (await client.post("/execute", json=program)).json()["execution_id"]

    async def look(state: State) -> None:
        async with client_of(state, is_trusted=True) as client:
            ids["status"] = (await client.get(f"/sandboxes/{ids['sandbox']}")).json()["status"]
            found = (await client.get(f"/executions/{ids['program']}?wait=20")).json()
            ids["verdict"] = found["verdict"]
            ids["code"] = (found.get("failure") or {}).get("code", "")
            assert (state.engine.sandbox(ids["sandbox"]) is None) is (ids["status"] == "stopped")

    with kept(tmp_path):
        served(tmp_path, make, node=NODE, keep_sessions=True)
        served(tmp_path, look, node="b7c2", keep_sessions=True)
        assert (ids["status"], ids["verdict"], ids["code"]) == (
            "stopped",
            "interrupted",
            "node_lost",
        )
        served(tmp_path, make, node=NODE, keep_sessions=True)
        served(tmp_path, look, node=NODE, keep_sessions=True)
        assert (ids["status"], ids["verdict"], ids["code"]) == ("running", "ok", "")


def test_offer_in_a_public_request_is_not_one(tmp_path: Path) -> None:
    """Control: the same requests through the public face."""

    async def work(state: State) -> None:
        async with client_of(state, is_trusted=False) as client:
            for path, body, name in (
                ("/execute", {"code": "1"}, "execution_id"),
                ("/sandboxes", {}, "id"),
            ):
                offered = new_id(NODE)
                made = (await asked(client, path, body, offered)).json()[name]
                assert made != offered
                assert node_of(made) == NODE

    served(tmp_path, work, node=NODE)


def test_description_of_the_api_knows_no_name(tmp_path: Path) -> None:
    found: list[bytes] = []

    async def work(state: State) -> None:
        async with client_of(state, is_trusted=False) as client:
            found.append((await client.get("/openapi.json")).content)

    for name, node in (("one", ""), ("other", NODE)):
        (tmp_path / name).mkdir()
        served(tmp_path / name, work, node=node)
    assert found[0] == found[1]
