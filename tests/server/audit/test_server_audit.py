"""The audit of a real server: what it holds, what it is worth when somebody touches it."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import cellwall as sdk
from cellwall import ToolError
from cellwall.server.app import ENDPOINTS
from cellwall.server.auth.keys import digest_of
from cellwall.server.http.audited_actions import ACTIONS, EXEMPT, READS
from kit.server.audit_stores import cellwall
from kit.servers import (
    ADMIN,
    ALICE,
    BOB,
    Server,
    configuration,
    metrics_address,
    new_sandbox,
    running,
    start,
)

PLANTED = "planted-secret-0f1e2d3c4b5a"
RAW = """
import json, socket, struct
address = __import__("tools")._line._link._address
def call(tool):
    head = json.dumps({"ev": "call", "tool": tool}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        line.sendall(struct.pack(">II", len(head), 2) + head + b"{}")
        data = b""
        while more := line.recv(65536): data += more
    return json.loads(data[data.rindex(b'{'):])["kind"]
print(call("none"), call("other"))
"""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def audited(request: pytest.FixtureRequest) -> Iterator[Server]:
    given = {}
    if request.param == "postgresql":
        given["store"] = request.getfixturevalue("postgres").database()
    with running(**given) as made:
        yield made


def records(server: Server, after: int = 0) -> list[dict[str, Any]]:
    client = server.client(ADMIN)
    found: list[dict[str, Any]] = []
    more: int | None = after
    while more is not None:
        answer = client.get("/audit", params={"after": more, "limit": 1000})
        assert answer.status_code == 200, answer.text
        found += answer.json()["records"]
        more = answer.json()["next"]
    return found


def last(server: Server) -> int:
    return int(records(server)[-1]["seq"])


def wait_for(server: Server, after: int, action: str, **fields: str) -> dict[str, Any]:
    """Return the first such record; what is only noted is written a moment later."""
    for _ in range(200):
        for found in records(server, after):
            if found["action"] == action and fields.items() <= found.items():
                return found
    raise AssertionError(f"no {action} {fields} in {records(server, after)}")


def state_dir(server: Server) -> Path:
    return server.log.parent / "state"


# -- what it holds -------------------------------------------------------------------------------


def test_a_token_is_opened_before_anything_is_written() -> None:
    for each in ENDPOINTS:
        route = (each.method, each.path)
        if each.access == "token" and (route in ACTIONS or route in READS):
            assert each.opens is not None, route


def test_every_route_that_changes_something_is_audited() -> None:
    routes = {(each.method, each.path) for each in ENDPOINTS}
    changing = {route for route in routes if route[0] not in {"GET", "HEAD"}}
    assert changing - set(ACTIONS) == set(EXEMPT) & changing
    assert set(ACTIONS) | set(EXEMPT) | READS <= routes
    assert not set(ACTIONS) & set(EXEMPT)


def test_an_execution_has_a_record_before_and_after(audited: Server) -> None:
    before = last(audited)
    client = audited.client()
    answer = client.post("/execute", json={"code": "print(1)"}, headers={"X-Request-Id": "r-1"})
    name = f"execution:{answer.json()['execution_id']}"
    mine = [each for each in records(audited, before) if each["object"] == name]
    accepted, ended = mine
    assert accepted["action"] == "execution.accept"
    assert accepted["tenant"] == "alice"
    assert accepted["actor"] == digest_of(ALICE)[:12]
    assert accepted["request"] == "r-1"
    assert len(accepted["parameters"]) == 64
    assert ended["action"] == "execution.end"
    assert ended["result"] == "ok"
    assert ended["runtime"] == "jail"
    assert ended["posture"] == answer.json()["isolation"]["posture"]
    assert json.loads(ended["usage"])["wall_s"] > 0


def test_calls_to_tools_of_the_client_are_on_record(audited: Server) -> None:
    def ask(secret: str) -> str:
        if secret == "no":
            raise ToolError(PLANTED)
        return PLANTED

    code = (
        f"tools.ask('{PLANTED}')\n"
        "for wrong in ('no', 7):\n"
        "    try: tools.ask(wrong)\n"
        "    except ToolError: pass\n"
    )
    before = last(audited)
    with sdk.connect(audited.address, ALICE) as client:
        assert client.run(code, tools=[ask]).ok
        assert client.run(RAW, tools=[ask]).stdout == "unknown unknown\n"
    wait_for(audited, before, "tool.call", result="unknown")
    found = [each for each in records(audited, before) if each["action"] == "tool.call"]
    # The two that no client heard of are one record and a number that comes within a minute.
    assert [(each["decision"], each["result"]) for each in found] == [
        ("allowed", "ok"), ("allowed", "failed: raised"), ("refused", "invalid"),
        ("refused", "unknown"),
    ]  # fmt: skip
    allowed, *_, refused = found
    assert allowed["tenant"] == "alice"
    assert (allowed["actor"], refused["actor"]) == (digest_of(ALICE)[:12], "server")
    assert allowed["object"].endswith(" call:1 tool:ask")
    sent = json.dumps({"secret": PLANTED}).encode()
    assert allowed["parameters"] == hashlib.sha256(sent).hexdigest()
    assert json.loads(allowed["details"])["arguments_bytes"] == len(sent)
    assert PLANTED not in json.dumps(found)


def test_a_session_is_on_record(audited: Server) -> None:
    before = last(audited)
    client = audited.client()
    sandbox = new_sandbox(client)
    path = f"/sandboxes/{sandbox}"
    client.put(f"{path}/files", params={"path": "a.txt"}, content=b"x").raise_for_status()
    client.post(f"{path}/commands", json={"command": "true"}).raise_for_status()
    client.post(f"{path}/files/sign", json={"path": "a.txt", "operation": "read"})
    client.request("DELETE", f"{path}/files", params={"path": "a.txt"}).raise_for_status()
    client.patch(path, json={"life_s": 60}).raise_for_status()
    client.delete(path).raise_for_status()
    wait_for(audited, before, "sandbox.end", object=f"sandbox:{sandbox}")
    found = [each for each in records(audited, before) if each["tenant"] == "alice"]
    actions = [each["action"] for each in found]
    for action in (
        "sandbox.create", "file.write", "command.start", "command.end", "file.sign",
        "file.remove", "sandbox.change", "sandbox.delete", "sandbox.end",
    ):  # fmt: skip
        assert action in actions
    written = next(each for each in found if each["action"] == "file.write")
    assert written["object"] == f"sandbox:{sandbox} path:a.txt"
    made = next(each for each in found if each["result"] == "running")
    assert (made["object"], made["runtime"]) == (f"sandbox:{sandbox}", "jail")


def test_an_allowed_action_that_fails_is_noted(audited: Server) -> None:
    before = last(audited)
    client = audited.client()
    path = f"/sandboxes/{new_sandbox(client)}"
    assert client.post(f"{path}/commands", json={"argv": ["/no/such"]}).status_code == 404
    assert wait_for(audited, before, "command.start", result="failed: not_found")


def test_reaching_for_others_things_is_noted_and_summed_up(audited: Server) -> None:
    before = last(audited)
    sandbox = new_sandbox(audited.client())
    bob = audited.client(BOB)
    for _ in range(20):
        assert bob.get(f"/sandboxes/{sandbox}").status_code == 404
        assert bob.get("/sandboxes/nobodys").status_code == 404
    wait_for(audited, before, "request.refuse", tenant="bob", result="not_found")
    for _ in range(20):
        assert httpx.get(f"{audited.address}/sandboxes").status_code in {401, 429}
    found = wait_for(audited, before, "request.refuse", result="unauthorized")
    assert found["actor"] == "address:127.0.0.1"
    refused = [each for each in records(audited, before) if each["action"] == "request.refuse"]
    assert len(refused) <= 4


def test_a_signed_write_is_its_owners(audited: Server) -> None:
    before = last(audited)
    client = audited.client()
    sandbox = new_sandbox(client)
    asked = {"path": "a.txt", "operation": "write"}
    signed = client.post(f"/sandboxes/{sandbox}/files/sign", json=asked).json()["url"]
    assert httpx.put(f"{signed}?path=else.txt", content=b"x").status_code == 400
    httpx.put(signed, content=b"x").raise_for_status()
    written = wait_for(audited, before, "file.write", tenant="alice")
    assert written["object"] == f"sandbox:{sandbox} path:a.txt"
    assert written["actor"] == "address:127.0.0.1"


def test_refused_tokens_are_summed_up(audited: Server) -> None:
    before = last(audited)
    for _ in range(40):
        assert httpx.put(f"{audited.address}/signed/none", content=b"x").status_code == 404
    found = wait_for(audited, before, "request.refuse", tenant="", result="not_found")
    assert found["actor"] == "address:127.0.0.1"
    written = [each for each in records(audited, before) if each["action"] == "file.write"]
    refused = [each for each in records(audited, before) if each["action"] == "request.refuse"]
    assert written == []
    assert len(refused) <= 4


def test_the_audit_is_the_operators_alone(audited: Server) -> None:
    """API-42: no tenant reads it."""
    for client in (audited.client(ALICE), audited.client(BOB)):
        assert client.get("/audit").status_code == 403
    assert httpx.get(f"{audited.address}/audit").status_code in {401, 429}


# -- anchors --------------------------------------------------------------------------------------


def test_anchors_go_to_the_system_log(tmp_path: Path) -> None:
    from cellwall.server.audit.check import anchors_in

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        log.settimeout(20)
        config = configuration(warm=[], audit_anchor=f"syslog:{tmp_path / 'log'}")
        server = start(tmp_path, "--port", "0", config=config)
        line = log.recv(4096).decode()
        server.stop()
    assert line.startswith("<85>cellwall: ")
    (anchor,) = anchors_in([line])
    assert anchor.seq == 1


def test_an_anchor_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    config = configuration(warm=[], audit_anchor=str(tmp_path / "no" / "such"))
    with pytest.raises(AssertionError, match="write the anchor"):
        start(tmp_path, "--port", "0", config=config)


def test_an_anchor_is_never_ahead_of_the_store(tmp_path: Path) -> None:
    """Killed at a random moment: whatever was anchored is there."""
    anchors = tmp_path / "anchors.log"
    config = configuration(warm=[], audit_anchor=str(anchors), audit_anchor_s=0.01)
    server = start(tmp_path, "--port", "0", config=config)
    client = server.client()
    for _ in range(30):
        client.post("/execute", json={"code": "1"})
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    server.stop()
    done = cellwall(state_dir(server), "verify", "--anchor", anchors, "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["anchors"] >= 2


# -- when it cannot be written -------------------------------------------------------------------


def hold_disk(server: Server, limit: int) -> None:
    """Let no file of the server grow beyond `limit` bytes: to it, the disk is full."""
    hard = resource.RLIM_INFINITY
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, hard))


def test_without_a_record_nothing_happens(tmp_path: Path) -> None:
    """FI-35, L7: a full disk under the audit; the file is not written, and later all is well."""
    server = start(tmp_path, "--port", "0", config=configuration(warm=[]))
    try:
        client = server.client()
        sandbox = f"/sandboxes/{new_sandbox(client)}"
        name = {"path": "a.txt"}
        client.put(f"{sandbox}/files", params=name, content=b"before").raise_for_status()
        hold_disk(server, 1)
        refused = client.put(f"{sandbox}/files", params=name, content=b"after")
        assert refused.status_code in {503, 507}, refused.text
        assert client.request("DELETE", f"{sandbox}/files", params=name).status_code in {503, 507}
        assert client.post("/execute", json={"code": "1"}).status_code in {503, 507}
        hold_disk(server, resource.RLIM_INFINITY)
        assert client.get(f"{sandbox}/files", params=name).content == b"before"
        client.put(f"{sandbox}/files", params=name, content=b"again").raise_for_status()
    finally:
        assert server.stop() == 0
    done = cellwall(state_dir(server), "verify")
    assert done.returncode == 0, done.stdout


def test_by_policy_it_happens_and_is_flagged(tmp_path: Path) -> None:
    server = start(tmp_path, "--port", "0", config=configuration(warm=[], audit="flag"))
    try:
        client = server.client()
        sandbox = f"/sandboxes/{new_sandbox(client)}"
        hold_disk(server, 1)
        name = {"path": "a.txt"}
        client.put(f"{sandbox}/files", params=name, content=b"x").raise_for_status()
        hold_disk(server, resource.RLIM_INFINITY)
        found = wait_for(server, 0, "file.write", decision="noted")
        assert json.loads(found["details"]) == {"late": True}
    finally:
        server.stop()
    assert cellwall(state_dir(server), "verify").returncode == 0


# -- secrets -------------------------------------------------------------------------------------


def test_no_secret_is_in_anything_the_server_writes(tmp_path: Path) -> None:
    """API-36: planted wherever a caller can put one, looked for in every file and page."""
    from urllib.parse import quote

    config = configuration(warm=[], metrics_port=0)
    server = start(tmp_path, "--port", "0", config=config)
    client = server.client(**{"X-Request-Id": PLANTED})
    body = {"code": "import os; secret = os.environ['A']", "env": {"A": PLANTED}}
    # Its request's id is kept with its result, for its owner; so it has one of its own.
    client.post("/execute", json=body, headers={"X-Request-Id": "x"}).raise_for_status()
    sandbox = f"/sandboxes/{new_sandbox(client, env={'A': PLANTED}, name='box')}"
    path = f"{sandbox}/files"
    client.put(path, params={"path": f"{PLANTED}.txt"}, content=b"x")
    client.get(path, params={"path": f"{PLANTED}/none"})
    client.get("/" + quote(PLANTED) + "/" + PLANTED.encode().hex())
    client.post(f"{sandbox}/commands", json={"argv": [PLANTED], "env": {"B": PLANTED}})
    # A key of the operator's making has no shape by which it is known, and may be a request's id.
    asked, named = {"path": "a", "operation": "read"}, {"X-Request-Id": ALICE}
    signed = client.post(f"{path}/sign", json=asked, headers=named).json()["url"]
    httpx.get(signed)
    wrong = "cw_" + "Wr0ng" * 9
    httpx.get(f"{server.address}/sandboxes", headers={"Authorization": f"Bearer {wrong}"})
    audit = json.dumps(records(server))
    pages = [audit]
    pages.append(httpx.get(metrics_address(server)).text)
    assert server.stop() == 0
    pages.append(cellwall(state_dir(server), "export").stdout)
    files = [each for each in (tmp_path / "state" / "server").rglob("*") if each.is_file()]
    pages += [each.read_bytes().decode("latin-1") for each in [server.log, *files]]
    token = signed.rpartition("/")[2]
    for secret in (PLANTED, PLANTED.encode().hex(), ALICE, token, wrong):
        assert [page for page in pages if secret in page] == []
    assert "[redacted]" in audit
    assert "request.refuse" in audit
