"""Quotas over two nodes and two gateways: never one more, and none refused for nothing.

The witness is what the nodes themselves say of the tenant's sandboxes and programs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cellwall.model.ids import new_id, node_of
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.cluster.witness import Witness
from kit.postgres_server import Postgres
from kit.server.mcp_doors import HttpDoor, text_of
from kit.servers import ALICE, BOB, run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SANDBOXES = 20
RUNNING = 4
CLIENTS = 200
ROUNDS = int(os.environ.get("CELLWALL_TEST_ROUNDS", "10"))
TIERS = (
    f"[tiers.default]\nsandboxes = {SANDBOXES}\nrunning = {RUNNING}\n"
    "[tiers.free]\n[tenants]\nbob = 'free'\n[doors.e2b]\n[doors.fusion]\n"
)


@pytest.fixture(scope="module")
def two(postgres: Postgres) -> Iterator[Cluster]:
    with cluster(2, 2, directory=directory(postgres), tiers=TIERS, probe_s=1.0) as made:
        yield made


def _live(client: httpx.Client) -> list[str]:
    answer = client.get("/sandboxes", params={"state": "live", "limit": "1000"}).json()
    assert "incomplete" not in answer
    return [str(each["id"]) for each in answer["sandboxes"]]


def _same_at_once(clients: list[httpx.Client], key: str) -> list[httpx.Response]:
    """Send one request under one key at both gateways, twice."""
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(each.post, "/sandboxes", json={}, headers={"idempotency-key": key})
            for each in clients[:4]
        ]
        return [each.result() for each in asked]


def test_sandboxes_of_a_tenant_are_never_more_than_its_quota(two: Cluster) -> None:
    clients = [two.client(number % 2) for number in range(8)]
    with Witness(two, "sandboxes") as witness, ThreadPoolExecutor(32) as pool:
        answers = list(
            pool.map(
                lambda number: clients[number % 8].post(
                    "/sandboxes",
                    json={},
                    headers={"idempotency-key": new_id()} if number % 3 else {},
                ),
                range(CLIENTS),
            )
        )
        made = [each.json()["id"] for each in answers if each.status_code == 201]
        refused = [each for each in answers if each.status_code != 201]
        assert len(made) == SANDBOXES  # none was refused below the quota
        for each in refused:
            error = each.json()["error"]
            assert (each.status_code, error["code"], error.get("quota")) == (
                429,
                "quota",
                "sandboxes",
            ), error
        assert sorted(_live(clients[0])) == sorted(made)
        assert len({node_of(each) for each in made}) == 2
        # What is deleted is room again, at once and at the other gateway.
        for number in range(30):
            gone = made.pop(0)
            assert clients[0].delete(f"/sandboxes/{gone}").status_code == 200
            answer = clients[1].post("/sandboxes", json={})
            assert answer.status_code == 201, (number, answer.text)
            made.append(answer.json()["id"])
        # One key at both gateways is counted once, and refused by both where there is no room.
        for _ in range(10):
            found = _same_at_once(clients, new_id())
            assert {each.status_code for each in found} == {429}, [each.text for each in found]
        for _ in range(5):
            key, gone = new_id(), made.pop(0)
            assert clients[0].delete(f"/sandboxes/{gone}").status_code == 200
            found = _same_at_once(clients, key)
            assert {each.status_code for each in found} == {201}, [each.text for each in found]
            (only,) = {each.json()["id"] for each in found}
            made.append(only)
            again = clients[1].post("/sandboxes", json={}, headers={"idempotency-key": key})
            assert again.json()["id"] == only  # which takes no room
    assert (witness.most, witness.looks > 20) == (SANDBOXES, True)
    # One that ends by itself is room, too.
    changed = clients[0].patch(f"/sandboxes/{made[0]}", json={"life_s": 1})
    assert changed.status_code == 200, changed.text
    wait_until(lambda: made[0] not in _live(clients[0]), "its life is over")
    answer = clients[1].post("/sandboxes", json={})
    assert answer.status_code == 201, answer.text
    for each in _live(clients[0]):
        clients[0].delete(f"/sandboxes/{each}")


def test_what_the_quota_allows_is_hardly_ever_refused(two: Cluster) -> None:
    """As many callers as there is room for, each with one at a time, at both gateways in turns."""
    clients = [two.client(number % 2) for number in range(SANDBOXES)]

    def churn(at: int) -> tuple[int, int]:
        asked = refused = 0
        for number in range(ROUNDS):
            answer = clients[(at + number) % SANDBOXES].post("/sandboxes", json={})
            asked += 1
            refused += answer.status_code == 429
            if answer.status_code == 201:
                path = f"/sandboxes/{answer.json()['id']}"
                gone = clients[(at + number + 1) % SANDBOXES].delete(path)
                assert gone.status_code == 200, gone.text
            else:
                assert answer.status_code == 429, answer.text
        return asked, refused

    with Witness(two, "sandboxes") as witness, ThreadPoolExecutor(SANDBOXES) as pool:
        counts = list(pool.map(churn, range(SANDBOXES)))
    asked, refused = (sum(each) for each in zip(*counts, strict=True))
    assert asked == SANDBOXES * ROUNDS
    assert refused <= asked // 100, (refused, asked)
    assert 1 < witness.most <= SANDBOXES
    print(f"refused below the quota: {refused} of {asked}")


def test_copies_are_counted_as_sandboxes_are(two: Cluster) -> None:
    first, second = two.client(0), two.client(1)
    source = first.post("/sandboxes", json={}).json()["id"]
    run_cell(first, f"/sandboxes/{source}", "x = 1")
    kept = first.post(f"/sandboxes/{source}/snapshots", json={}).json()["id"]
    with Witness(two, "sandboxes") as witness, ThreadPoolExecutor(8) as pool:

        def copy(number: int) -> int:
            client = (first, second)[number % 2]
            if number % 3:
                answer = client.post(f"/sandboxes/{source}/fork", json={"count": 3})
                return len(answer.json().get("forks", []))
            return int(client.post(f"/snapshots/{kept}/restore", json={}).status_code == 201)

        made = sum(pool.map(copy, range(24)))
    assert witness.most == len(_live(first)) == made + 1
    assert SANDBOXES - 3 <= made + 1 <= SANDBOXES
    refused = second.post(f"/sandboxes/{source}/fork", json={"count": 4})
    assert (refused.status_code, refused.json()["error"]["quota"]) == (429, "sandboxes")
    first.delete(f"/snapshots/{kept}")
    for each in _live(first):
        first.delete(f"/sandboxes/{each}")


def test_programs_of_a_tenant_under_way_are_never_more_than_its_quota(two: Cluster) -> None:
    clients = [two.client(number % 2) for number in range(8)]
    with Witness(two, "running") as witness, ThreadPoolExecutor(64) as pool:
        answers = list(
            pool.map(
                lambda number: clients[number % 8].post(
                    "/execute", json={"code": f"import time; time.sleep(0.05); print({number})"}
                ),
                range(CLIENTS),
            )
        )
    for number, each in enumerate(answers):
        assert (each.status_code, each.json().get("stdout")) == (200, f"{number}\n"), each.text
    assert witness.looks > 20
    assert witness.most == RUNNING
    # The control: another tenant, without that quota, has more at once.
    bobs = [two.client(number % 2, key=BOB) for number in range(2)]
    with ThreadPoolExecutor(12) as pool:
        free = pool.map(
            lambda number: bobs[number % 2].post(
                "/execute", json={"code": "import time; time.sleep(1)"}
            ),
            range(12),
        )
        most = 0
        asker = two.client(key=BOB)

        def look() -> bool:
            nonlocal most
            most = max(most, asker.get("/quota").json()["use"]["running"])
            return bool(most > RUNNING)

        wait_until(look, "more than the other tenant may")
        assert all(each.status_code == 200 for each in free)


def test_sandboxes_of_a_door_are_counted_with_the_others(two: Cluster) -> None:
    clients = [two.client(number % 2) for number in range(8)]
    ways = [("/e2b/v2/sandboxes", {"templateID": "base"}), ("/sandboxes", {})]
    with Witness(two, "sandboxes") as witness, ThreadPoolExecutor(16) as pool:

        def make(number: int) -> int:
            path, body = ways[number % 2]
            answer = clients[number % 8].post(path, json=body)
            assert answer.status_code in {201, 429}, answer.text
            return answer.status_code

        answers = list(pool.map(make, range(4 * SANDBOXES)))
    assert set(answers) == {201, 429}
    live = _live(clients[0])
    assert (witness.most, len(live), answers.count(201)) == (SANDBOXES,) * 3
    forked = clients[1].post(f"/e2b/sandboxes/{live[0]}/fork", json={"count": 2})
    assert forked.status_code == 429, forked.text
    for each in live:
        clients[0].delete(f"/sandboxes/{each}")


def test_programs_of_a_door_are_counted_with_the_others(two: Cluster) -> None:
    clients = [two.client(number % 2) for number in range(8)]
    bearer = {"authorization": f"Bearer {ALICE}"}
    code = "import time; time.sleep(0.1); print(42)"

    def run(number: int) -> str:
        client = clients[number % 8]
        if number % 2:
            return str(client.post("/execute", json={"code": code}).json().get("stdout"))
        asked = {"code": code, "language": "python"}
        answer = client.post("/fusion/run_code", json=asked, headers=bearer).json()
        return str(answer["run_result"]["stdout"])

    with Witness(two, "running") as witness, ThreadPoolExecutor(32) as pool:
        assert set(pool.map(run, range(CLIENTS // 2))) == {"42\n"}
    assert (witness.most, witness.looks > 10) == (RUNNING, True)


def test_tools_of_mcp_are_counted_with_the_others(two: Cluster) -> None:
    clients = [two.client(number % 2) for number in range(8)]
    doors = [HttpDoor(f"{two.address(number)}/mcp") for number in range(2)]

    async def call(number: int, tool: str, given: dict[str, object]) -> str:
        async with doors[number % 2].client() as client:
            return text_of(await client.call_tool(tool, given))

    async def calls(tool: str, given: dict[str, object], count: int) -> list[str]:
        return await asyncio.gather(*(call(number, tool, given) for number in range(count)))

    def run(number: int) -> str:
        code = f"import time; time.sleep(0.1); print({number})"
        return str(clients[number % 8].post("/execute", json={"code": code}).json()["stdout"])

    slow: dict[str, object] = {"code": "import time; time.sleep(0.2); print(42)"}
    with Witness(two, "running") as witness, ThreadPoolExecutor(16) as pool:
        ran = [pool.submit(run, number) for number in range(40)]
        said = asyncio.run(calls("run_code", slow, 16))
        assert [each.result() for each in ran] == [f"{number}\n" for number in range(40)]
    assert all("42" in each for each in said), said
    assert (witness.most, witness.looks > 5) == (RUNNING, True)
    held = [clients[0].post("/sandboxes", json={}).json()["id"] for _ in range(SANDBOXES - 1)]

    async def make() -> tuple[str, str]:
        async with doors[1].client() as client:
            made = text_of(await client.call_tool("create_sandbox", {}))
            return made, text_of(await client.call_tool("create_sandbox", {}))

    first, second = asyncio.run(make())
    assert "is ready" in first, first
    assert "sandboxes" in second, second
    assert "quota" in second, second
    for each in held:
        clients[0].delete(f"/sandboxes/{each}")


def test_program_waits_and_is_not_refused_while_others_may_run(postgres: Postgres) -> None:
    """Two gateways, nine of ten programs at one of them: waiting is allowed, a refusal is not."""
    tiers = "[tiers.default]\nrunning = 10\n"
    with cluster(2, 2, directory=directory(postgres), tiers=tiers, probe_s=1.0) as made:
        clients = [made.client(0 if number % 10 else 1) for number in range(40)]

        def run(number: int) -> int:
            code = f"import time; time.sleep({0.1 + number % 5 / 20}); print({number})"
            return clients[number % 40].post("/execute", json={"code": code}).status_code

        with Witness(made, "running") as witness, ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(run, range(400)))
    refused = len(answers) - answers.count(200)
    print(f"refused of the quota of 10: {refused} of {len(answers)}")
    assert refused <= len(answers) // 100
    assert 8 <= witness.most <= 10
