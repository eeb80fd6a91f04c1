"""Bounds and ends: admission, time to live, sockets' caps, arguments and environment.

API-12, 13, 14, 19, 26, 27, 29, 30.
"""

from __future__ import annotations

import ast
import json
import threading
import time
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

import cellwall.server
from kit.servers import ADMIN, ALICE, Server, error_of, new_sandbox, running

WAIT = "import time\nprint(1, flush=True)\ntime.sleep(60)"


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


# -- API-27: refused before it costs anything ----------------------------------------------------


def test_full_house_refuses_at_once_and_says_when() -> None:
    with running(most_running=1, most_queued=1) as server:
        client = server.client()
        stream = {"Accept": "application/x-ndjson"}
        with client.stream("POST", "/execute", json={"code": WAIT}, headers=stream) as answer:
            lines = answer.iter_lines()  # kept: its end would be ours, too
            next(lines)
            queued: list[httpx.Response] = []
            waiting = threading.Thread(
                target=lambda: queued.append(
                    server.client().post("/execute", json={"code": "print(2)"})
                )
            )
            waiting.start()
            admin = server.client(ADMIN)
            deadline = time.monotonic() + 10
            while admin.get("/stats").json()["server"]["queued"] != 1:
                assert time.monotonic() < deadline
            refused = server.client().post("/execute", json={"code": "1"})
            assert (refused.status_code, error_of(refused)["code"]) == (503, "capacity")
            assert int(refused.headers["retry-after"]) >= 1
            client.delete(f"/executions/{answer.headers['x-execution-id']}")
        waiting.join()
        assert queued[0].json()["stdout"] == "2\n"


def test_number_of_sandboxes_is_bounded() -> None:
    with running(most_sandboxes=1) as server:
        client = server.client()
        first = new_sandbox(client)
        refused = client.post("/sandboxes", json={})
        assert (refused.status_code, error_of(refused)["code"]) == (503, "capacity")
        client.delete(f"/sandboxes/{first}")
        assert client.post("/sandboxes", json={}).status_code == 201


def test_host_without_memory_takes_nothing_new() -> None:
    with running(least_free_mb=10**9, warm=[]) as server:
        client = server.client()
        for path, body in (("/execute", {"code": "1"}), ("/sandboxes", {})):
            refused = client.post(path, json=body)
            assert (refused.status_code, error_of(refused)["code"]) == (503, "capacity")
        assert client.get("/health").status_code == 200


# -- API-26: nothing is immortal -----------------------------------------------------------------


def test_records_are_forgotten() -> None:
    with running(retention_s=1) as server:
        client = server.client()
        execution = client.post("/execute", json={"code": "1"}).json()["execution_id"]
        sandbox = f"/sandboxes/{new_sandbox(client)}"
        command = client.post(
            f"{sandbox}/commands", json={"argv": ["true"], "background": True}
        ).json()["id"]
        ended = f"/sandboxes/{new_sandbox(client)}"
        client.delete(ended)
        paths = [f"/executions/{execution}", f"{sandbox}/commands/{command}", ended]
        assert [client.get(path).status_code for path in paths] == [200, 200, 200]
        deadline = time.monotonic() + 15
        while [client.get(path).status_code for path in paths] != [404, 404, 404]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert client.get(sandbox).status_code == 200


def test_retained_answers_are_bounded_in_number_and_bytes() -> None:
    with running(store="none", retained_executions=3, retained_bytes=300_000) as server:
        client = server.client()
        ids = [
            client.post("/execute", json={"code": f"print({n})"}).json()["execution_id"]
            for n in range(5)
        ]
        found = [client.get(f"/executions/{each}").status_code for each in ids]
        assert found == [404, 404, 200, 200, 200]
        big = client.post("/execute", json={"code": "print('x' * 400_000)"}).json()
        assert client.get(f"/executions/{big['execution_id']}").status_code == 404


def test_every_sandbox_has_an_end(client: httpx.Client) -> None:
    body = client.get(f"/sandboxes/{new_sandbox(client)}").json()
    assert body["limits"]["idle_s"] > 0
    assert body["expires_at"] > body["created_at"]


# -- API-19: sockets -----------------------------------------------------------------------------


def test_socket_messages_have_a_cap(server: Server) -> None:
    path = f"ws://127.0.0.1:{server.port}/sandboxes/{new_sandbox(server.client())}/terminal"
    with connect(path, additional_headers={"X-API-Key": ALICE}) as socket:
        socket.recv()
        socket.send(b"x" * (1024 * 1024))  # the control: what just fits is taken
        assert socket.recv(timeout=20)
        with pytest.raises(ConnectionClosed):
            _send_and_read(socket, b"x" * (1024 * 1024 + 1))
        # 1006: the rest of what we sent met a closed connection before its reason arrived.
        assert socket.close_code in {1009, 1006}


def _send_and_read(socket: ClientConnection, message: bytes) -> None:
    socket.send(message)
    list(socket)


def test_sockets_that_ended_do_not_count_for_their_address() -> None:
    with running(most_connections_per_address=6) as server:
        path = f"ws://127.0.0.1:{server.port}/sandboxes/{new_sandbox(server.client())}/terminal"
        for _ in range(10):
            with connect(path, additional_headers={"X-API-Key": ALICE}) as socket:
                socket.recv()
        assert server.client().get("/health").status_code == 200


def test_socket_of_a_sandbox_that_ends_is_closed(server: Server, client: httpx.Client) -> None:
    sandbox = new_sandbox(client)
    path = f"ws://127.0.0.1:{server.port}/sandboxes/{sandbox}/terminal"
    with connect(path, additional_headers={"X-API-Key": ALICE}) as socket:
        socket.recv()
        client.delete(f"/sandboxes/{sandbox}")
        texts = [message for message in socket if isinstance(message, str)]
        assert json.loads(texts[-1])["verdict"] == "cancelled"
        assert socket.close_code == 1000


def test_sockets_end_after_their_whole_life() -> None:
    with running(socket_s=1) as server:
        path = f"ws://127.0.0.1:{server.port}/sandboxes/{new_sandbox(server.client())}/terminal"
        with connect(path, additional_headers={"X-API-Key": ALICE}) as socket:
            list(socket)
            assert socket.close_code == 1001


# -- API-12, 13, 14 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    ["mounts", "volumes", "devices", "capabilities", "privileged", "security_opt", "sysctls",
     "network_mode", "user", "image", "host_path", "seccomp"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/execute", "/sandboxes"])
def test_callers_cannot_name_what_is_the_operators(
    client: httpx.Client, path: str, field: str
) -> None:
    body = {field: "x"} if path == "/sandboxes" else {"code": "1", field: "x"}
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert field in error_of(answer)["message"]


def test_loader_hooks_change_nothing_about_the_wall(client: httpx.Client) -> None:
    hooks = {
        "LD_PRELOAD": "/home/user/evil.so", "PYTHONSTARTUP": "/home/user/evil.py",
        "PYTHONPATH": "/home/user", "BASH_ENV": "/home/user/evil.sh", "PYTHONINSPECT": "1",
    }  # fmt: skip
    code = "import os\nprint(os.environ['LD_PRELOAD'])"
    plain = client.post("/execute", json={"code": "1"}).json()
    hooked = client.post("/execute", json={"code": code, "env": hooks}).json()
    assert hooked["stdout"] == "/home/user/evil.so\n"
    assert hooked["isolation"]["posture"] == plain["isolation"]["posture"]


def test_arguments_never_meet_a_shell(client: httpx.Client) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    words = ["$(id)", "; touch /tmp/planted", "`id`", "a b", "*", "-n", "\n"]
    answer = client.post(
        f"{sandbox}/commands",
        json={"argv": ["printf", "%s|", *words]},
        headers={"Accept": "application/json"},
    ).json()
    assert answer["stdout"] == "".join(f"{word}|" for word in words)
    listed = client.get(f"{sandbox}/files/list", params={"path": "/tmp"}).json()["entries"]
    assert listed == []
    program = client.post(
        "/execute", json={"code": "import sys\nprint(sys.argv[1:])", "args": words}
    ).json()
    assert program["stdout"] == f"{words}\n"


# -- API-29, 30 ----------------------------------------------------------------------------------


_READS_OR_WRITES = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "unlink"}
_OWN_FILES = {
    "os.open in anchor.py",  # the anchors' file, at a path only the operator names
    "tarfile.open in template_parts.py",  # in memory: files of a request become a context
}
_OWN_METHODS = {  # open, no file
    *("self", "self._anchoring", "self._refusals", "self.notices", "self.engine.copies"),
}


def test_server_opens_no_files_of_sandboxes() -> None:
    """What is inside goes through the guest."""
    root = Path(str(cellwall.server.__file__)).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            receiver, _, name = called.rpartition(".")
            if name in _READS_OR_WRITES and receiver not in _OWN_METHODS:
                found.add(f"{called} in {path.name}")
    assert found == _OWN_FILES


def test_health_answers_while_everything_runs(server: Server) -> None:
    clients = [server.client() for _ in range(8)]
    threads = [
        threading.Thread(
            target=lambda c=each: [c.post("/execute", json={"code": "1"}) for _ in range(4)]
        )
        for each in clients
    ]
    for thread in threads:
        thread.start()
    slow = 0.0
    probe = server.client()
    while any(thread.is_alive() for thread in threads):
        began = time.perf_counter()
        assert json.loads(probe.get("/health").content)["status"] == "ok"
        slow = max(slow, time.perf_counter() - began)
    assert slow < 1.0


@pytest.mark.slow
def test_thousand_sandboxes_and_two_hundred_streams_fit() -> None:
    """Server memory at most 400 MiB, `/health` at most 50 ms at p99."""
    import asyncio

    from cellwall_bench.http import held

    figure = asyncio.run(held("http_held", 1000, 200))
    assert figure.value is not None
    assert figure.value <= 400, figure.detail
