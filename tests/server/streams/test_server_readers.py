"""FI-20, FI-21, FI-25: readers that do not read, leave, or vanish; and deleting at once.

Raw sockets, because no client library behaves like this. Others' answers are the outside witness,
with the server's memory, its descriptors and what it says it runs.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from kit.servers import ADMIN, ALICE, Server, new_sandbox, running

_SOON_S = 10.0
_FLOOD = "import os\nwhile True: os.write(1, b'y' * 65536)"
_STALL_S = 2.0
_TCP_REPAIR = 19  # TCP_REPAIR of linux/tcp.h: a closed end sends no FIN
_WINDOW_BYTES = 64 * 1024
"""What the kernel takes for a reader is output, and kept like anybody's: so it has to be little."""


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server that hangs up on who takes nothing for two seconds."""
    with running(stall_s=_STALL_S) as made:
        yield made


def _ask(
    server: Server, path: str, *, window_bytes: int | None = None, **body: object
) -> socket.socket:
    """Send a request for a stream; what comes is not read."""
    text = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
        f"X-API-Key: {ALICE}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n"
    )
    sock = server.connect(window_bytes)
    sock.sendall(head.encode() + text)
    return sock


def _execution(sock: socket.socket) -> str:
    """The id from the head of the answer, byte by byte: nothing of the body is taken."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    line = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"x-execution-id"))
    return line.split(b":")[1].strip().decode()


def _until(condition: Callable[[], bool], what: str, within_s: float = 20) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, what
        time.sleep(0.02)
    return time.monotonic() - began


def _runs(admin: httpx.Client) -> int:
    return int(admin.get("/stats").json()["server"]["running"])


def _is_parked(admin: httpx.Client) -> bool:
    """The pool is as full as it will be: a sandbox that is being made takes descriptors later."""
    pool = admin.get("/stats").json()["server"]["pool"]
    return bool(pool["parked"] > 1 and pool["starting"] == pool["destroying"] == 0)


def _status(server: Server, execution: str) -> str:
    return str(server.client().get(f"/executions/{execution}").json()["verdict"])


def test_reader_that_never_reads_is_hung_up_on_and_costs_nothing(impatient: Server) -> None:
    """The run is cancelled with its connection; meanwhile everybody else is served."""
    client, admin = impatient.client(), impatient.client(ADMIN)
    client.post("/execute", json={"code": "print(1)"})
    client.delete(f"/sandboxes/{new_sandbox(client)}")  # what serves sessions is there from now on
    assert _runs(admin) == 0
    _until(lambda: _is_parked(admin), "no sandbox is parked for the next")
    before, descriptors = impatient.rss_bytes(), impatient.descriptors()
    body: dict[str, Any] = {"code": _FLOOD, "timeout": 60, "limits": {"output_kb": 65_536}}
    with _ask(impatient, "/execute", window_bytes=_WINDOW_BYTES, **body) as sock:
        execution = _execution(sock)
        assert _runs(admin) == 1
        assert client.post("/execute", json={"code": "print(2)"}).json()["stdout"] == "2\n"
        _until(lambda: _runs(admin) == 0, "it runs on for a reader that does not read")
        assert impatient.rss_bytes() - before < 32 << 20
    assert client.get(f"/executions/{execution}?wait=5").json()["verdict"] == "cancelled"
    _until(lambda: impatient.descriptors() <= descriptors, "its descriptors are kept")


def test_reader_that_never_reads_a_detached_run_loses_the_connection_only(
    impatient: Server,
) -> None:
    code = "import os, time\nfor n in range(300): os.write(1, b'y' * 65536)\nprint('done')"
    limits = {"output_kb": 65_536}
    body: dict[str, Any] = {
        "code": code,
        "timeout": 60,
        "limits": limits,
        "on_disconnect": "detach",
    }
    with _ask(impatient, "/execute", **body) as sock:
        execution = _execution(sock)
        answer = impatient.client().get(f"/executions/{execution}", params={"wait": 30}).json()
    assert answer["verdict"] == "ok"
    assert answer["usage"]["stdout_bytes"] == 300 * 65_536 + 5


@pytest.mark.parametrize("how", ["closed", "reset", "half-closed"])
@pytest.mark.parametrize("policy", ["cancel", "detach"])
def test_client_that_leaves_in_mid_stream_is_dealt_with_as_it_asked(
    impatient: Server, how: str, policy: str
) -> None:
    code = "import time\nprint('up', flush=True)\ntime.sleep(4)\nprint('done')"
    with _ask(impatient, "/execute", code=code, on_disconnect=policy) as sock:
        execution = _execution(sock)
        while b"up" not in sock.recv(65_536):
            pass
        began = time.monotonic()
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half-closed":
            sock.shutdown(socket.SHUT_WR)
    answer = impatient.client().get(f"/executions/{execution}", params={"wait": 20}).json()
    if policy == "detach":
        assert (answer["verdict"], answer["stdout"]) == ("ok", "up\ndone\n")
    else:
        assert answer["verdict"] == "cancelled"
        assert time.monotonic() - began < 3.5


@pytest.mark.root
@pytest.mark.parametrize("policy", ["cancel", "detach"])
def test_peer_that_is_gone_without_a_word_is_noticed(impatient: Server, policy: str) -> None:
    """FI-21: a half-open connection; the kernel forgets its end of it and sends nothing."""
    code = "import time\nprint('up', flush=True)\ntime.sleep(14)\nprint('done')"
    sock = _ask(impatient, "/execute", code=code, on_disconnect=policy, timeout=40)
    execution = _execution(sock)
    while b"up" not in sock.recv(65_536):
        pass
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    sock.close()
    answer = impatient.client().get(f"/executions/{execution}", params={"wait": 30}).json()
    assert answer["verdict"] == ("cancelled" if policy == "cancel" else "ok")


def test_reader_of_one_byte_per_second_is_served_as_long_as_it_reads(impatient: Server) -> None:
    """The control of the hang-up: slow is not gone."""
    code = "import time\nfor n in range(40): print(n, flush=True); time.sleep(0.1)"
    with _ask(impatient, "/execute", code=code) as sock:
        execution = _execution(sock)
        until = time.monotonic() + 2 * _STALL_S + 1
        taken = 0
        while time.monotonic() < until:
            taken += len(sock.recv(1))
            time.sleep(1)  # that slow is the fault
        assert taken >= 4
        assert _status(impatient, execution) == "ok"


def test_deleting_over_http_at_once_and_again_is_the_same_answer(server: Server) -> None:
    client = server.client()
    sandbox = new_sandbox(client)
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.delete(f"/sandboxes/{sandbox}"), range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["id"] for answer in answers} == {sandbox}
    assert client.delete(f"/sandboxes/{sandbox}").status_code == 200
    assert client.get(f"/sandboxes/{sandbox}").json()["status"] == "stopped"
    refused = client.post(f"/sandboxes/{sandbox}/execute", json={"code": "1"})
    assert refused.status_code == 410
    assert time.monotonic() - began < _SOON_S
