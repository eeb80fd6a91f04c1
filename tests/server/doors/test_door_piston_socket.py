"""Piston's WebSocket: input, output, signals and close codes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from conftest import require_command
from kit.server.doors import opened, slow_start
from kit.servers import ALICE, Server
from kit.waiting import wait_until

pytestmark = slow_start
SLEEP = "import time\nprint('on', flush=True)\ntime.sleep(60)"


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with opened("piston", lines='tenant = "chat"') as made:
        yield made


def init(code: str, language: str = "python") -> dict[str, object]:
    files = [{"content": code}]
    return {"type": "init", "language": language, "version": "*", "files": files}


def talk(
    door: Server, first: object, *, at: str = "", then: tuple[object, ...] = ()
) -> tuple[list[dict[str, Any]], int]:
    """Send `first`, and `then` once output contains `at`; return the messages and close code."""
    found: list[dict[str, Any]] = []
    address = f"ws://127.0.0.1:{door.port}/piston/api/v2/connect"
    with connect(address, proxy=None) as socket:
        if first is not None:
            socket.send(json.dumps(first))
        with contextlib.suppress(ConnectionClosed):  # by any code but 1000
            for message in socket:
                found.append(json.loads(message))
                if at and at in str(found[-1].get("data", "")):
                    for each in then:
                        socket.send(each if isinstance(each, str) else json.dumps(each))
                    at = ""
        assert socket.close_code is not None
        return found, socket.close_code


def test_program_talks_with_its_client(door: Server) -> None:
    code = "print('name?', flush=True)\nprint('hello', input())"
    data = {"type": "data", "stream": "stdin", "data": "ann\n"}
    found, close = talk(door, init(code), at="name?", then=(data,))
    assert found[0]["type"] == "runtime"
    assert found[1] == {"type": "stage", "stage": "run"}
    said = "".join(each["data"] for each in found if each["type"] == "data")
    assert said == "name?\nhello ann\n"
    assert found[-1] == {"type": "exit", "stage": "run", "code": 0, "signal": None}
    assert close == 4999


def test_compile_is_a_stage(door: Server) -> None:
    require_command("gcc")
    found, close = talk(door, init("int main(void) { return 2; }", "c"))
    assert [each.get("stage") for each in found[1:]] == ["compile", "compile", "run", "run"]
    assert (found[-1]["code"], close) == (2, 4999)
    found, close = talk(door, init("int main(void) {", "c"))
    assert (found[-1]["stage"], found[-1]["code"], close) == ("compile", 1, 4999)
    assert "error" in "".join(each["data"] for each in found if each.get("stream") == "stderr")


def test_signal_reaches_the_program(door: Server) -> None:
    found, close = talk(door, init(SLEEP), at="on", then=({"type": "signal", "signal": "SIGTERM"},))
    assert (found[-1]["code"], found[-1]["signal"], close) == (None, "SIGTERM", 4999)


def test_program_ends_at_its_time_limit(door: Server) -> None:
    found, close = talk(door, {**init(SLEEP), "run_timeout": 500})
    assert (found[-1]["signal"], found[-1]["error"]) == (
        "SIGKILL",
        "Time limit exceeded (wall clock)",
    )
    assert close == 4999


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        (init(SLEEP), init(SLEEP), 4000),
        (None, None, 4001),
        ({**init(""), "language": "zz"}, None, 4002),
        (init(SLEEP), "no JSON", 4002),
        ({"type": "data", "stream": "stdin", "data": ""}, None, 4003),
        (init(SLEEP), {"type": "data", "stream": "stdout", "data": ""}, 4004),
        (init(SLEEP), {"type": "signal", "signal": "SIGNOTHING"}, 4005),
    ],
)
def test_misuse_has_its_close_code(door: Server, first: object, then: object, code: int) -> None:
    found, close = talk(door, first, at="on", then=(then,))
    assert close == code
    if code == 4002:
        assert (found[-1]["type"], set(found[-1])) == ("error", {"type", "message"})


def test_client_that_leaves_ends_its_sandbox(door: Server) -> None:
    headers = {"Authorization": f"Bearer {ALICE}"}
    address = f"ws://127.0.0.1:{door.port}/piston/api/v2/connect"
    client = door.client(ALICE)

    def running() -> int:
        return len(client.get("/sandboxes?state=running").json()["sandboxes"])

    with connect(address, proxy=None, additional_headers=headers) as socket:
        socket.send(json.dumps(init(SLEEP)))
        assert next(message for message in socket if "on" in str(message))
        assert running() == 1
    wait_until(lambda: running() == 0, "no sandbox is left")


def test_wrong_key_opens_no_socket(door: Server) -> None:
    address = f"ws://127.0.0.1:{door.port}/piston/api/v2/connect"
    with pytest.raises(InvalidStatus) as refusal:
        connect(address, proxy=None, additional_headers={"Authorization": "Bearer wrong"})
    assert refusal.value.response.status_code == 401
