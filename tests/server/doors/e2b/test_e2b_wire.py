"""The control plane of the E2B door on the wire: what it takes, what it refuses, and how."""

from __future__ import annotations

import re
import shutil
import socket
import time
from datetime import datetime
from typing import Any

import httpx
import pytest

from cellwall.apps.doors.e2b.facts import ENVD_VERSION
from conftest import Require
from kit.outside.servers import OUTSIDE, Sink
from kit.server.e2b_doors import MADE, E2BServer, created, e2b_server, refusal
from kit.servers import ALICE, logged, run_cell
from kit.waiting import wait_until

ALL = "0.0.0.0/0"
SETS = {"transform": {"headers": {"X-Token": "a value"}}}


def ends_in(client: httpx.Client, sandbox_id: str) -> float:
    detail = client.get(f"/sandboxes/{sandbox_id}").json()
    return datetime.fromisoformat(detail["endAt"]).timestamp() - time.time()


@pytest.fixture
def client(e2b: E2BServer) -> httpx.Client:
    return e2b.client()


@pytest.fixture
def sandbox_id(client: httpx.Client) -> str:
    return created(client)["sandboxID"]


# -- creation ----------------------------------------------------------------------------------


def test_a_created_sandbox_has_what_every_client_needs(client: httpx.Client) -> None:
    made = created(client)
    assert re.fullmatch("[a-z0-9]+", made["sandboxID"])
    assert made["envdVersion"] == ENVD_VERSION
    assert made["templateID"] == "base"
    assert made["envdAccessToken"] != made["trafficAccessToken"]
    assert made["domain"].startswith("localhost:")
    assert made["envdAccessToken"] != created(client)["envdAccessToken"]


def test_a_sandbox_that_is_not_to_be_secure_has_a_token_all_the_same(
    e2b: E2BServer, client: httpx.Client
) -> None:
    made = created(client, secure=False)
    place = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49983"}
    with_token = {**place, "X-Access-Token": made["envdAccessToken"]}
    status = [
        e2b.client(None).get("/files?path=/etc/passwd", headers=headers).status_code
        for headers in (place, with_token)
    ]
    assert status == [401, 200]


@pytest.mark.parametrize(
    ("path", "body", "life_s"),
    [
        ("/v2/sandboxes", {}, 300),
        ("/sandboxes", {}, 15),
        ("/v2/sandboxes", {"timeout": 60}, 60),
        ("/sandboxes", {"timeout": 60, "secure": True, "allow_internet_access": True}, 60),
    ],
)
def test_a_sandbox_lives_as_long_as_its_client_says(
    client: httpx.Client, path: str, body: dict[str, object], life_s: float
) -> None:
    answer = client.post(path, json={**MADE, **body})
    assert answer.status_code == 201, answer.text
    assert life_s - 5 < ends_in(client, answer.json()["sandboxID"]) <= life_s


def test_defaults_that_are_said_are_taken(client: httpx.Client) -> None:
    created(
        client,
        metadata={},
        envVars={},
        autoPause=False,
        autoPauseMemory=None,
        autoResume={"enabled": False},
        network={"allowOut": [], "denyOut": None, "rules": {}, "allowPublicTraffic": False},
        mcp=None,
        iam={},
        volumeMounts=[],
        secure=True,
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (
            {"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}},
            "autoPauseMemory",
        ),
        ({"mcp": {"search": {}}}, "Failed to start MCP gateway"),
        ({"iam": {"tokens": {"a": {}}}}, "iam"),
        ({"volumeMounts": [{"name": "a", "path": "/a"}]}, "volumeMounts"),
        ({"network": {"rules": {"a.example": [{"action": "x"}]}}}, "rules"),
        ({"network": {"rules": {"192.0.2.1": [SETS]}}}, "no host name"),
        (
            {"network": {"rules": {"a.example": [{"transform": {"headers": {"Host": "b"}}}]}}},
            "Host",
        ),
        ({"allow_internet_access": False, "network": {"rules": {"a.example": [SETS]}}}, "rules"),
        ({"network": {"egressProxy": {"address": "a"}}}, "egressProxy"),
        ({"network": {"dnsServers": ["192.0.2.1"]}}, "dnsServers"),
        ({"network": {"httpsPorts": [443]}}, "httpsPorts"),
        ({"network": {"allowPublicTraffic": True}}, "allowPublicTraffic"),
        ({"network": {"denyOut": ["a.example"]}}, "denyOut"),
        ({"network": {"denyOut": ["192.0.2.1", "a.example"]}}, "denyOut"),
        ({"network": {"allowOut": ["a.example"]}}, "allowOut"),
        ({"network": {"unheardOf": 1}}, "unheardOf"),
        ({"metadata": {"e2b.template": "x"}}, "metadata"),
        ({"metadata": {"x": "y" * 600}}, "metadata"),
        ({"metadata": {"x": 1}}, "metadata"),
        ({"envVars": {"1X": "y"}}, "env"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 10**6}, "timeout"),
        ({"timeout": 100_000}, "timeout"),
        ({"timeout": "x"}, "timeout"),
        ({"templateID": ""}, "templateID"),
        ({"templateID": None}, "templateID"),
        ({"unheardOf": 1}, "unheardOf"),
    ],
)
def test_an_option_that_cannot_be_had_is_refused_by_its_name(
    client: httpx.Client, body: dict[str, object], field: str
) -> None:
    before = len(client.get("/v2/sandboxes").json())
    answer = client.post("/v2/sandboxes", json={**MADE, **body})
    assert field in refusal(answer, 400)
    assert len(client.get("/v2/sandboxes").json()) == before


@pytest.mark.parametrize("data", [b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(client: httpx.Client, data: bytes) -> None:
    refusal(client.post("/v2/sandboxes", content=data), 400)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none-such", "template 'none-such' not found"),
        ("none-such:v1", "tag 'v1' does not exist for template 'none-such'"),
    ],
)
def test_an_unknown_template_is_not_found(client: httpx.Client, name: str, message: str) -> None:
    assert refusal(client.post("/v2/sandboxes", json={"templateID": name}), 404) == message


def test_a_repeated_creation_with_its_key_gives_the_same_sandbox(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"trial-{time.time_ns()}"}
    made = [client.post("/v2/sandboxes", json=MADE, headers=headers).json() for _ in range(2)]
    assert made[0] == made[1]
    other = client.post("/v2/sandboxes", json={**MADE, "timeout": 9}, headers=headers)
    assert other.status_code in {409, 422}
    refusal(other, other.status_code)


def test_a_chunked_body_is_read(e2b: E2BServer) -> None:
    def pieces() -> list[bytes]:
        return [b'{"template', b'ID":"base"}']

    answer = e2b.client().post("/v2/sandboxes", content=iter(pieces()))
    assert answer.status_code == 201, answer.text


# -- connections, lives ------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["/v2", ""])
def test_a_connection_only_prolongs(client: httpx.Client, version: str) -> None:
    made = created(client, timeout=100)
    path = f"{version}/sandboxes/{made['sandboxID']}/connect"
    shorter = client.post(path, json={"timeout": 10})
    assert shorter.status_code == 200
    assert shorter.json() == made
    assert ends_in(client, made["sandboxID"]) > 90
    assert client.post(path, json={"timeout": 500}).status_code == 200
    assert 490 < ends_in(client, made["sandboxID"]) <= 500
    assert client.post(path, json={"memory": False}).status_code == 200  # it runs


def test_a_connection_to_a_paused_sandbox_resumes_it(client: httpx.Client, sandbox_id: str) -> None:
    one = f"/sandboxes/{sandbox_id}"
    assert client.post(f"{one}/pause").status_code == 204
    assert client.get(one).json()["state"] == "paused"
    refusal(client.post(f"{one}/pause", json={}), 409)
    refusal(client.post(f"{one}/timeout", json={"timeout": 50}), 404)
    answer = client.post(f"{one}/connect", json={"timeout": 77})
    assert answer.status_code == 201
    assert answer.json()["sandboxID"] == sandbox_id
    assert client.get(one).json()["state"] == "running"
    assert 70 < ends_in(client, sandbox_id) <= 77


def test_an_older_client_resumes_a_paused_sandbox(client: httpx.Client, sandbox_id: str) -> None:
    one = f"/sandboxes/{sandbox_id}"
    refusal(client.post(f"{one}/resume", json={}), 409)
    client.post(f"{one}/pause")
    assert client.post(f"{one}/resume", json={"timeout": 60}).status_code == 201


@pytest.mark.parametrize("enabled", [False, True])
def test_a_pause_of_the_files_alone_ends_with_a_connection_alone(
    client: httpx.Client, *, enabled: bool
) -> None:
    """Requests to the sandbox resume one that keeps its memory, where its client wants that."""
    made = created(client, autoPause=True, autoResume={"enabled": enabled})
    one, here = f"/sandboxes/{made['sandboxID']}", {"E2b-Sandbox-Id": made["sandboxID"]}
    here["X-Access-Token"] = made["envdAccessToken"]

    def heard() -> int:
        return client.get("/files", params={"path": "/etc/hostname"}, headers=here).status_code

    assert heard() == 200
    assert client.post(f"{one}/pause").status_code == 204
    assert client.get(one).json()["pauseMode"] == "full"
    assert heard() == (200 if enabled else 502)  # the control
    client.post(f"{one}/connect", json={})
    assert client.post(f"{one}/pause", json={"memory": False}).status_code == 204
    assert heard() == 502
    detail = client.get(one).json()
    assert (detail["state"], detail["pauseMode"]) == ("paused", "filesystem")
    refusal(client.post(f"{one}/pause", json={"memory": False}), 409)
    answer = client.post(f"{one}/connect", json={"timeout": 77})
    assert answer.status_code == 201
    assert answer.json() == made
    assert heard() == 200
    assert "pauseMode" not in client.get(one).json()
    assert 70 < ends_in(client, made["sandboxID"]) <= 77


def test_a_pause_is_503_while_a_request_is_half_way(
    e2b: E2BServer, client: httpx.Client, sandbox_id: str
) -> None:
    """A client takes the files and does not read them; once it has gone the pause is made."""
    place, one = f"/sandboxes/{sandbox_id}", f"/sandboxes/{sandbox_id}/pause"
    fill = (
        "import os\nfile = open('big', 'wb')\nfor _ in range(48): file.write(os.urandom(1 << 20))"
    )
    assert run_cell(e2b.server.client(), place, fill)["verdict"] == "ok"
    with e2b.server.connect(65_536) as reader:
        reader.sendall(
            f"GET {place}/files/archive?path=. HTTP/1.1\r\nHost: localhost\r\n"
            f"X-API-Key: {ALICE}\r\n\r\n".encode()
        )
        assert reader.recv(12) == b"HTTP/1.1 200"
        answer = client.post(one, json={"memory": False})
        assert "under way" in refusal(answer, 503)
        assert answer.headers["retry-after"] == "1"
        assert client.get(place).json()["state"] == "running"
    wait_until(
        lambda: client.post(one, json={"memory": False}).status_code == 204, "the pause is made"
    )


def test_snapshots_of_the_files_alone_are_refused(client: httpx.Client, sandbox_id: str) -> None:
    answer = client.post(f"/sandboxes/{sandbox_id}/snapshots", json={"memory": False})
    assert "memory" in refusal(answer, 400)


def test_files_alone_at_the_timeout_are_taken(client: httpx.Client) -> None:
    created(client, autoPause=True, autoPauseMemory=False, autoResume={"enabled": False})
    created(client, autoPause=False, autoPauseMemory=False)


@pytest.mark.timeout(300)
def test_files_alone_are_refused_where_they_cannot_be_kept(require: Require) -> None:
    """In gVisor, at the creation and at the pause, and the sandbox goes on."""
    require("gvisor", shutil.which("runsc") is not None, "run: apt-get install runsc")
    kernel = "[tiers.strong]\nleast_isolation = 'kernel'\n[tenants]\nalice = 'strong'\n"
    with e2b_server(kernel) as strong:
        client = strong.client()
        body = {**MADE, "autoPause": True, "autoPauseMemory": False}
        said = refusal(client.post("/v2/sandboxes", json=body), 400)
        assert "autoPauseMemory" in said
        assert "'gvisor'" in said
        assert client.get("/v2/sandboxes").json() == []
        one = f"/sandboxes/{created(client, autoPause=True)['sandboxID']}"
        answer = client.post(f"{one}/pause", json={"memory": False})
        assert "'gvisor'" in refusal(answer, answer.status_code)
        assert answer.status_code >= 400
        assert client.get(one).json()["state"] == "running"
        client.delete(one)


def test_a_timeout_shortens_and_prolongs_and_ends(client: httpx.Client, sandbox_id: str) -> None:
    path = f"/sandboxes/{sandbox_id}/timeout"
    assert client.post(path, json={"timeout": 40}).status_code == 204
    assert 30 < ends_in(client, sandbox_id) <= 40
    assert client.post(path, json={"timeout": 700}).status_code == 204
    assert 690 < ends_in(client, sandbox_id) <= 700
    refusal(client.post(path, json={"timeout": 100_000}), 400)
    refusal(client.post(path, json={}), 400)
    assert client.post(path, json={"timeout": 0}).status_code == 204
    refusal(client.get(f"/sandboxes/{sandbox_id}"), 404)


def test_a_refresh_never_shortens(client: httpx.Client, sandbox_id: str) -> None:
    path = f"/sandboxes/{sandbox_id}/refreshes"
    assert client.post(path, json={"duration": 10}).status_code == 204
    assert ends_in(client, sandbox_id) > 250


def test_a_killed_sandbox_is_not_found(client: httpx.Client, sandbox_id: str) -> None:
    one = f"/sandboxes/{sandbox_id}"
    assert client.delete(one).status_code == 204
    refusal(client.delete(one), 404)
    refusal(client.get(one), 404)
    assert sandbox_id not in {each["sandboxID"] for each in client.get("/v2/sandboxes").json()}


def test_a_sandbox_is_paused_at_its_timeout_where_its_client_wants_that(
    client: httpx.Client,
) -> None:
    key = {"Idempotency-Key": f"paused-{time.time_ns()}"}
    body = {**MADE, "timeout": 1, "autoPause": True, "metadata": {"a": "b"}}
    made = [client.post("/v2/sandboxes", json=body, headers=key).json() for _ in range(2)]
    assert made[0] == made[1]
    one = f"/sandboxes/{made[0]['sandboxID']}"
    assert client.get(one).json()["lifecycle"] == {"autoResume": False, "onTimeout": "pause"}
    wait_until(lambda: client.get(one).json()["state"] == "paused", "it is paused")
    assert client.post(f"{one}/connect", json={"timeout": 60}).status_code == 201
    assert 50 < ends_in(client, made[0]["sandboxID"]) <= 60
    assert client.post(f"{one}/timeout", json={"timeout": 1}).status_code == 204
    wait_until(lambda: client.get(one).json()["state"] == "paused", "it is paused again")
    assert client.get(one).json()["metadata"] == {"a": "b"}
    assert client.delete(one).status_code == 204


def test_a_timeout_of_nothing_pauses_where_the_client_wants_a_pause(client: httpx.Client) -> None:
    paused, ended = (created(client, autoPause=wish)["sandboxID"] for wish in (True, False))
    for one in (paused, ended):
        assert client.post(f"/sandboxes/{one}/timeout", json={"timeout": 0}).status_code == 204
    assert client.get(f"/sandboxes/{ended}").status_code == 404
    wait_until(
        lambda: client.get(f"/sandboxes/{paused}").json()["state"] == "paused", "it is paused"
    )
    assert client.delete(f"/sandboxes/{paused}").status_code == 204


def test_a_sandbox_that_its_owner_resumed_is_not_paused_again_for_the_same_timeout(
    e2b: E2BServer, client: httpx.Client
) -> None:
    one = f"/sandboxes/{created(client, timeout=1, autoPause=True)['sandboxID']}"
    wait_until(lambda: client.get(one).json()["state"] == "paused", "it is paused")
    assert e2b.server.client(ALICE).post(f"{one}/resume").status_code == 200
    other = f"/sandboxes/{created(client, timeout=1, autoPause=True)['sandboxID']}"
    wait_until(lambda: client.get(other).json()["state"] == "paused", "a later one is paused")
    assert client.get(one).json()["state"] == "running"


# -- lists -------------------------------------------------------------------------------------


def test_a_list_is_filtered_and_comes_in_pages(client: httpx.Client) -> None:
    mark = f"page-{time.time_ns()}"
    made = [created(client, metadata={"mark": mark})["sandboxID"] for _ in range(3)]
    client.post(f"/sandboxes/{made[0]}/pause")

    def listed(**query: Any) -> tuple[list[str], str | None]:
        answer = client.get("/v2/sandboxes", params={"metadata": f"mark={mark}", **query})
        assert answer.status_code == 200, answer.text
        return [each["sandboxID"] for each in answer.json()], answer.headers.get("x-next-token")

    assert listed() == (made[::-1], None)
    assert listed(order="asc") == (made, None)
    assert listed(state="paused") == (made[:1], None)
    assert listed(state="running,paused")[0] == made[::-1]
    assert listed(state=["running", "paused"])[0] == made[::-1]
    assert listed(template="base")[0] == made[::-1]
    assert listed(template="other")[0] == []
    page, token = listed(limit=2)
    assert (page, bool(token)) == (made[:0:-1], True)
    assert listed(limit=2, nextToken=token) == (made[:1], None)
    started = client.get(f"/sandboxes/{made[1]}").json()["startedAt"]
    assert listed(startedAfter=started)[0] == made[:0:-1]
    older = client.get("/sandboxes", params={"metadata": f"mark={mark}"}).json()
    assert [each["sandboxID"] for each in older] == made[:0:-1]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"}, {"limit": "1000"}, {"order": "x"}, {"state": "x"}, {"nextToken": "x"},
        {"startedAfter": "yesterday"}, {"startedAfter": "2026-01-01T00:00:00"}, {"unheardOf": "1"},
    ],
)  # fmt: skip
def test_a_filter_that_cannot_be_is_refused(client: httpx.Client, query: dict[str, str]) -> None:
    assert next(iter(query)) in refusal(client.get("/v2/sandboxes", params=query), 400)


# -- numbers, networks -------------------------------------------------------------------------


def test_metrics_are_of_now_and_none_of_another_time(client: httpx.Client, sandbox_id: str) -> None:
    path = f"/sandboxes/{sandbox_id}/metrics"
    [found] = client.get(path).json()
    assert found["memTotal"] > found["memUsed"] > 0
    assert found["diskTotal"] >= found["diskUsed"] > 0
    assert found["cpuUsedPct"] >= 0
    now = int(time.time())
    for factor in (1, 1000):
        around = {"start": (now - 60) * factor, "end": (now + 60) * factor}
        assert len(client.get(path, params=around).json()) == 1
        assert client.get(path, params={"end": (now - 60) * factor}).json() == []
        assert client.get(path, params={"start": (now + 60) * factor}).json() == []
    refusal(client.get(path, params={"start": "x"}), 400)


@pytest.mark.parametrize(
    ("body", "internet", "network"),
    [
        ({}, True, {}),
        ({"allow_internet_access": False}, False, {"denyOut": [ALL]}),
        (
            {"allowOut": ["a.example", "*.b.example", "192.0.2.1"], "denyOut": [ALL]},
            True,
            {"allowOut": ["a.example", "*.b.example", "192.0.2.1/32"], "denyOut": [ALL]},
        ),
        ({"denyOut": []}, True, {}),
        ({"denyOut": ["8.8.8.8", "8.8.9.9/24"]}, True,
         {"denyOut": ["8.8.8.8/32", "8.8.9.0/24", "::/0"]}),
        ({"allowOut": ["8.8.8.8"], "denyOut": ["8.8.8.8/31"]}, True,
         {"denyOut": ["8.8.8.9/32", "::/0"]}),
        ({"allowOut": ["8.8.8.8"], "denyOut": ["8.8.8.8"]}, True, {}),
    ],
)  # fmt: skip
def test_a_network_update_replaces_the_whole_policy(
    client: httpx.Client,
    sandbox_id: str,
    body: dict[str, object],
    internet: bool,
    network: dict[str, object],
) -> None:
    one = f"/sandboxes/{sandbox_id}"
    before = {"allowOut": ["192.0.2.9"], "denyOut": [ALL]}
    assert client.put(f"{one}/network", json=before).status_code == 204
    assert client.put(f"{one}/network", json=body).status_code == 204
    found = client.get(one).json()
    assert found["allowInternetAccess"] is internet
    assert found["network"] == {**network, "allowPublicTraffic": False}


@pytest.mark.parametrize(
    "body", [{"rules": {"a": [SETS]}}, {"egressProxy": {"address": "a"}}, {"dnsServers": ["a"]},
             {"denyOut": ["a.example"]}, {"httpsPorts": [1]}]
)  # fmt: skip
def test_a_network_update_that_cannot_be_enforced_changes_nothing(
    client: httpx.Client, sandbox_id: str, body: dict[str, object]
) -> None:
    one = f"/sandboxes/{sandbox_id}"
    client.put(f"{one}/network", json={"allow_internet_access": False})
    message = refusal(client.put(f"{one}/network", json=body), 400)
    assert next(iter(body)).replace("rules", "made without trust") in message
    assert client.get(one).json()["allowInternetAccess"] is False


def test_rules_of_hosts_are_headers_of_the_policy(client: httpx.Client) -> None:
    rules = {"a.example": [SETS], "*.b.example": [SETS, {}]}
    made = created(client, network={"rules": rules})
    one = f"/sandboxes/{made['sandboxID']}"
    shown = {"a.example": [SETS], "*.b.example": [SETS]}
    assert client.get(one).json()["network"]["rules"] == shown
    closed = {"rules": {"a.example": [SETS]}, "allowOut": ["a.example"], "denyOut": [ALL]}
    assert client.put(f"{one}/network", json=closed).status_code == 204
    network = client.get(one).json()["network"]
    assert (network["rules"], network["allowOut"]) == (closed["rules"], ["a.example"])


DIALLED = """
import socket
line = socket.create_connection(("127.0.0.1", 3128), 20)
line.sendall(b"CONNECT {0} HTTP/1.1\\r\\nHost: {0}\\r\\n\\r\\n")
print(line.recv(2000).decode())
"""


def test_what_is_denied_is_refused_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the creation, in a snapshot's sandbox, and where it changes; the control reaches it."""
    monkeypatch.setenv("CELLWALL_NETWORK_ADDRESSES", "127.0.1.0/24")
    network = {"denyOut": ["127.0.1.0/30"], "allowOut": ["127.0.1.2"]}
    with Sink() as web, e2b_server() as e2b:
        client, native = e2b.client(), e2b.server.client()

        def dialled(where: str, address: str = OUTSIDE) -> str:
            code = DIALLED.format(f"{address}:{web.port}")
            return str(run_cell(native, f"/sandboxes/{where}", code)["stdout"])

        control = created(client)["sandboxID"]
        assert dialled(control).startswith("HTTP/1.1 200")
        name = f"denied-{time.time_ns() % 10**9}"
        client.post(f"/sandboxes/{control}/snapshots", json={"name": name})
        for template in ("base", name):
            denied = created(client, templateID=template, network=network)["sandboxID"]
            assert "(deny 127.0.1.0/31)" in dialled(denied), template
            assert "(deny" not in dialled(denied, "127.0.1.2")
        assert client.put(f"/sandboxes/{control}/network", json=network).status_code == 204
        assert "(deny 127.0.1.0/31)" in dialled(control)
        assert client.put(f"/sandboxes/{control}/network", json={}).status_code == 204
        assert dialled(control).startswith("HTTP/1.1 200")
        assert web.connections == 2


# -- copies ------------------------------------------------------------------------------------


def test_a_snapshot_is_a_template_until_it_is_deleted(
    client: httpx.Client, sandbox_id: str
) -> None:
    name = f"snap-{time.time_ns() % 10**9}"
    answer = client.post(f"/sandboxes/{sandbox_id}/snapshots", json={"name": name})
    assert answer.status_code == 201, answer.text
    snapshot = answer.json()
    assert snapshot["names"] == [name]
    for query in ({"sandboxID": sandbox_id}, {"name": name}, {"name": f"{name}:default"}):
        assert client.get("/snapshots", params=query).json() == [snapshot]
    assert client.get("/snapshots", params={"sandboxID": "other"}).json() == []
    for called in (name, f"{name}:default", snapshot["snapshotID"]):
        copy = created(client, templateID=called, metadata={"a": "b"}, timeout=60)
        detail = client.get(f"/sandboxes/{copy['sandboxID']}").json()
        assert (detail["templateID"], detail["metadata"]) == (called, {"a": "b"})
        assert ends_in(client, copy["sandboxID"]) <= 60
    refused = client.post("/v2/sandboxes", json={"templateID": name, "envVars": {"A": "b"}})
    assert "envVars" in refusal(refused, 400)
    assert client.delete(f"/templates/{name}").status_code == 204
    refusal(client.delete(f"/templates/{name}"), 404)
    refusal(client.post("/v2/sandboxes", json={"templateID": name}), 404)


def test_a_fork_gives_as_many_sandboxes_as_were_asked_for(
    client: httpx.Client, sandbox_id: str
) -> None:
    answer = client.post(f"/sandboxes/{sandbox_id}/fork", json={"count": 2, "timeout": 60})
    assert answer.status_code == 201, answer.text
    made = [each["sandbox"] for each in answer.json()]
    assert len({each["sandboxID"] for each in made} | {sandbox_id}) == 3
    assert ends_in(client, made[0]["sandboxID"]) <= 60
    refusal(client.post(f"/sandboxes/{sandbox_id}/fork", json={"count": 21}), 400)


# -- templates ---------------------------------------------------------------------------------


def test_templates_exist_by_the_names_that_create_sandboxes(client: httpx.Client) -> None:
    assert client.get("/templates/aliases/base").json() == {"templateID": "base", "public": False}
    refusal(client.get("/templates/aliases/none-such"), 404)
    refusal(client.get("/templates/none-such/tags"), 404)
    assert "base" in {each["templateID"] for each in client.get("/templates").json()}


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v3/templates", 403),
        ("POST", "/v2/templates/x/builds/y", 403),
        ("GET", "/templates/x/builds/y/status", 404),
        ("GET", "/templates/x/files/y", 403),
        ("POST", "/v2/templates", 501),
        ("PATCH", "/v2/templates/x", 501),
        ("POST", "/templates/tags", 400),
        ("DELETE", "/templates/tags", 400),
        ("PUT", "/uploads/x", 401),
        ("GET", "/volumes", 501),
        ("POST", "/volumes", 501),
        ("DELETE", "/volumes/x", 501),
        ("GET", "/secrets", 501),
        ("POST", "/secrets/x", 501),
        ("GET", "/sandboxes/metrics", 501),
        ("GET", "/sandboxes/x/logs", 501),
        ("GET", "/teams", 501),
        ("GET", "/unheard-of", 404),
        ("POST", "/sandboxes/x/unheard-of", 404),
        ("PUT", "/v2/sandboxes", 405),
        ("PATCH", "/sandboxes/x", 405),
        ("GET", "/traffic-to-the-inside", 404),
    ],
)
def test_what_is_not_here_is_refused_in_the_protocols_shape(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path, json={"a": 1} if method != "GET" else None)
    refusal(answer, status)
    assert answer.headers.get("should-retry") == ("false" if status >= 500 else None)


@pytest.mark.parametrize("key", [None, "wrong-key-0123456789abcdef0123456789abcdef"])
def test_without_a_key_nothing_is_answered(e2b: E2BServer, key: str | None) -> None:
    client = e2b.client(key)
    for method, path in (("GET", "/v2/sandboxes"), ("POST", "/v2/sandboxes"), ("GET", "/x")):
        refusal(client.request(method, path), 401)


def test_a_connection_goes_on_after_a_refused_body(e2b: E2BServer) -> None:
    """A client that keeps its socket would otherwise fail with its next request."""
    head = (
        f"Host: {e2b.address.removeprefix('http://')}\r\nX-API-KEY: {ALICE}\r\n"
        "Content-Type: application/json\r\n"
    )
    refused = b"{" * 1000
    port = int(e2b.address.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
        sock.makefile("rb") as file,
    ):
        for _ in range(2):
            text = f"POST /v2/sandboxes HTTP/1.1\r\n{head}Content-Length: {len(refused)}\r\n\r\n"
            sock.sendall(text.encode() + refused)
            assert file.readline() == b"HTTP/1.1 400 Bad Request\r\n"
            length = 0
            while (line := file.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert b'"code":400' in file.read(length)


def test_a_client_of_an_untested_release_is_warned_and_logged(e2b: E2BServer) -> None:
    new = e2b.client(**{"User-Agent": "e2b-python-sdk/2.99.0"})
    tested = e2b.client(**{"User-Agent": "e2b-python-sdk/2.63.0"})
    assert "2.99.0" in new.get("/v2/sandboxes").headers["warning"]
    assert "warning" not in tested.get("/v2/sandboxes").headers
    logged(e2b.server, lambda each: "a client of release 2.99.0" in each["event"])


def test_health_is_public(e2b: E2BServer) -> None:
    assert e2b.client(None).get("/health").status_code == 204


def test_the_door_is_also_below_its_prefix(e2b: E2BServer) -> None:
    client = e2b.client()
    client.base_url = httpx.URL(f"{e2b.server.address}/e2b")
    made = created(client)
    assert client.delete(f"/sandboxes/{made['sandboxID']}").status_code == 204


def test_a_full_tenant_is_told_so_in_the_words_that_runners_wait_for() -> None:
    quotas = "[tiers.default]\nsandboxes = 1\n"
    with e2b_server(quotas) as small:
        client = small.client()
        first = created(client)
        message = refusal(client.post("/v2/sandboxes", json=MADE), 429)
        assert "maximum number of concurrent" in message
        client.delete(f"/sandboxes/{first['sandboxID']}")
        created(client)
