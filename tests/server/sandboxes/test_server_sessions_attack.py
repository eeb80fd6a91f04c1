"""Hostile sessions over HTTP (group Q); the rest of the group stands with its own nouns.

Q07, Q09: test_server_sandboxes. Q08: test_server_ownership. Q10: test_server_terminal. Q11:
test_server_output.
"""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from kit.servers import Server, new_sandbox, run_cell

JSON = {"Accept": "application/json"}


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


@pytest.fixture
def sandbox(client: httpx.Client) -> str:
    return f"/sandboxes/{new_sandbox(client)}"


@pytest.mark.parametrize(
    ("code", "verdicts"),
    [
        ("import os; os._exit(5)", {"nonzero_exit"}),
        ("import ctypes; ctypes.string_at(0)", {"signalled"}),
        ("import os; os.abort()", {"signalled"}),
    ],
    ids=["exit", "segfault", "abort"],
)
def test_kernel_that_dies_is_replaced_and_says_so(
    client: httpx.Client, sandbox: str, code: str, verdicts: set[str]
) -> None:
    """Q01."""
    run_cell(client, sandbox, "x = 1")
    answer = run_cell(client, sandbox, "print('nonce-q01', flush=True)\n" + code)
    assert answer["stdout"] == "nonce-q01\n"
    assert answer["verdict"] in verdicts, answer
    after = run_cell(client, sandbox, "print('again')")
    assert (after["verdict"], after["stdout"]) == ("ok", "again\n")
    assert any("new one" in note for note in after["notes"])
    assert run_cell(client, sandbox, "x")["exception"]["name"] == "NameError"


def test_blocking_in_c_ends_at_the_wall(client: httpx.Client, sandbox: str) -> None:
    """Q02: holds the lock for ever; the control is a cell that does not."""
    assert run_cell(client, sandbox, "print('fine')", timeout=5)["verdict"] == "ok"
    code = "print('nonce-q02', flush=True)\nimport re\nre.match(r'(a+)+$', 'a' * 64 + 'b')"
    began = time.monotonic()
    answer = run_cell(client, sandbox, code, timeout=1)
    assert time.monotonic() - began < 8
    assert (answer["stdout"], answer["verdict"]) == ("nonce-q02\n", "wall_time")


def test_hooks_cannot_keep_a_sandbox_alive(client: httpx.Client, sandbox: str) -> None:
    """Q04."""
    code = (
        "import atexit, signal, sys, threading, time\n"
        "atexit.register(time.sleep, 1000)\n"
        "sys.excepthook = lambda *a: time.sleep(1000)\n"
        "threading.excepthook = sys.excepthook\n"
        "for n in range(1, 32):\n"
        "    try: signal.signal(n, lambda *a: time.sleep(1000))\n"
        "    except OSError: pass\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print('nonce-q04')\n"
    )
    assert run_cell(client, sandbox, code)["stdout"] == "nonce-q04\n"
    began = time.monotonic()
    client.delete(sandbox).raise_for_status()
    assert client.get(sandbox).json()["status"] == "stopped"
    assert time.monotonic() - began < 5


def test_history_that_fills_memory_ends_with_that_verdict(client: httpx.Client) -> None:
    """Q05. Held softly, its context may end between two cells; then the next one says so."""
    sandbox = f"/sandboxes/{new_sandbox(client, limits={'memory_mb': 96})}"
    assert run_cell(client, sandbox, "kept = []")["verdict"] == "ok"
    cell = {"code": "kept.append(bytearray(b'x') * (8 * 2**20)); len(kept)"}
    answer: dict[str, Any] = {"verdict": "ok"}
    for _ in range(50):
        if answer.get("verdict") == "ok":
            answer = client.post(f"{sandbox}/execute", json=cell, headers=JSON).json()
    assert answer.get("verdict") in {"memory", "exception"}, answer
    assert client.get(sandbox).json()["status"] == "running"
    after = run_cell(client, sandbox, "print('kept' in globals())")
    assert answer["verdict"] == "exception" or after["stdout"] == "False\n"


def test_input_with_nobody_there_ends(client: httpx.Client, sandbox: str) -> None:
    """Q06: without stdin it is an end of file, not a wait."""
    began = time.monotonic()
    answer = run_cell(client, sandbox, "print('nonce-q06', flush=True)\ninput()", timeout=3)
    assert answer["stdout"].startswith("nonce-q06\n")
    assert answer["verdict"] in {"exception", "wall_time"}
    assert time.monotonic() - began < 8
    given = run_cell(client, sandbox, "input()", stdin="typed\n")
    assert given["results"] == [{"text/plain": "'typed'"}]


def test_neighbour_is_untouched_meanwhile(client: httpx.Client, sandbox: str) -> None:
    """W5: the same answer beside every one of them."""
    other = f"/sandboxes/{new_sandbox(client)}"
    run_cell(client, other, "y = 7")
    client.post(
        f"{sandbox}/execute",
        json={"code": "import os\nos.fork()\nos.abort()"},
        headers=JSON,
    )
    assert run_cell(client, other, "y")["results"] == [{"text/plain": "7"}]
