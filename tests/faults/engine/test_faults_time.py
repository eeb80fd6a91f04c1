"""FI-27, FI-28: the wall clock jumps by a day, and the whole server stands still for a while.

Deadlines, lives and retention follow the monotonic clock; only what is shown is wall time, which is
also the witness that the jump arrived.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import Require
from kit.faults.clock import Clock
from kit.faults.entries import running as program
from kit.servers import ALICE, Server, configuration, lines_of, new_sandbox, start

pytestmark = pytest.mark.attack
_DAY_S = 86_400


@pytest.fixture
def clock(tmp_path: Path, require: Require) -> Clock:
    try:
        return Clock(tmp_path)
    except FileNotFoundError as error:
        require("C compiler", False, str(error))
        raise


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    """A server of the test's own whose wall clock is `clock`."""
    made = start(
        tmp_path, "--port", "0", config=configuration(), environ=clock.environ, is_forked=False
    )
    yield made
    made.stop()


def _begin(client: httpx.Client, code: str, **body: Any) -> str:
    headers = {"Accept": "application/x-ndjson"}
    asked = {"code": code, "on_disconnect": "detach", **body}
    with client.stream("POST", "/execute", json=asked, headers=headers) as answer:
        next(answer.iter_lines())
        return str(answer.headers["x-execution-id"])


def _end(client: httpx.Client, execution: str) -> dict[str, Any]:
    answer = client.get(f"/executions/{execution}", params={"wait": 20})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _created(client: httpx.Client, sandbox: str) -> float:
    text = client.get(f"/sandboxes/{sandbox}").json()["created_at"]
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


_WAITS = "import time\nprint('up', flush=True)\ntime.sleep({})\nprint('done')"


@pytest.mark.parametrize("jump_s", [_DAY_S, -_DAY_S])
def test_jump_of_the_wall_clock_ends_nothing_and_delays_nothing(
    server: Server, clock: Clock, jump_s: int
) -> None:
    client = server.client()
    sandbox = new_sandbox(client, limits={"idle_s": 60, "life_s": 120})
    ended = client.post("/execute", json={"code": "print(1)"}).json()["execution_id"]
    fine = _begin(client, _WAITS.format(2), timeout=20)
    late = _begin(client, _WAITS.format(60), timeout=2)
    began = time.monotonic()
    clock.set(jump_s)
    other = new_sandbox(client)
    assert abs(_created(client, other) - _created(client, sandbox) - jump_s) < 60  # it has arrived
    assert _end(client, late)["verdict"] == "wall_time"
    assert 1 < time.monotonic() - began < 20
    answer = _end(client, fine)
    assert (answer["verdict"], answer["stdout"]) == ("ok", "up\ndone\n")
    assert 1.9 <= answer["usage"]["wall_s"] < 20
    assert client.get(f"/sandboxes/{sandbox}").json()["status"] == "running"
    lines = lines_of(client.post(f"/sandboxes/{sandbox}/execute", json={"code": "6 * 7"}))
    assert lines[-1]["verdict"] == "ok"
    assert _end(client, ended)["stdout"] == "1\n"


@pytest.mark.parametrize("jump_s", [_DAY_S, -_DAY_S])
def test_jump_of_the_wall_clock_neither_forgets_nor_keeps_what_has_ended(
    tmp_path: Path, clock: Clock, jump_s: int
) -> None:
    config = configuration(retention_s=4)
    made = start(tmp_path, "--port", "0", config=config, environ=clock.environ, is_forked=False)
    try:
        client = made.client()
        first = client.post("/execute", json={"code": "print(1)"}).json()["execution_id"]
        clock.set(jump_s)
        client.post("/execute", json={"code": "print(2)"})
        assert client.get(f"/executions/{first}").status_code == 200
        deadline = time.monotonic() + 30
        while client.get(f"/executions/{first}").status_code == 200:
            assert time.monotonic() < deadline, "kept for ever"
            client.post("/execute", json={"code": "print(3)"})
    finally:
        made.stop()


_STOPPED_S = 3.0


def test_server_that_stood_still_kills_nothing_that_was_within_its_limits(
    tmp_path: Path,
) -> None:
    """60 s at a wall limit of minutes, in small: what ended meanwhile did not run too long."""
    made = start(tmp_path, "--port", "0", config=configuration())
    try:
        client = made.client(ALICE)
        boxes = [new_sandbox(client, limits={"idle_s": 60}) for _ in range(3)]
        short = _begin(client, _WAITS.format(0.5), timeout=2)
        long = _begin(client, _WAITS.format(_STOPPED_S + 1), timeout=30)
        endless = _begin(client, _WAITS.format(60), timeout=2)
        _stand_still(made.process.pid)
        answers = [_end(client, each) for each in (short, long, endless)]
        assert [each["verdict"] for each in answers] == ["ok", "ok", "wall_time"], answers
        for box in boxes:
            assert client.get(f"/sandboxes/{box}").json()["status"] == "running"
            lines = lines_of(client.post(f"/sandboxes/{box}/execute", json={"code": "1"}))
            assert lines[-1]["verdict"] == "ok"
    finally:
        made.stop()


def _stand_still(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        assert _state(pid) == "T"  # the control: it really stands still
        threading.Event().wait(_STOPPED_S)  # the fault itself lasts this long
        assert _state(pid) == "T"
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    deadline = time.monotonic() + 5
    while True:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        state = text.rpartition(")")[2].split()[0]
        if state == "T" or time.monotonic() > deadline:
            return state


_LEASE = """
async def main():
    engine = bare()
    sandbox = await engine.create_sandbox(limits={"idle_s": 1, "life_s": 60})
    busy = await engine.create_sandbox(limits={"idle_s": 1, "life_s": 60})
    running = asyncio.ensure_future(busy.run("import time; time.sleep(4); print('done')"))
    say("up", None)
    sys.stdin.readline()
    ended = await running
    say("busy", [ended.stdout, busy.status])
    say("idle", sandbox.status)
    await engine.aclose()

asyncio.run(main())
"""


def test_engine_that_stood_still_longer_than_a_lease_ends_the_idle_one_only() -> None:
    with program(_LEASE) as embedder:
        embedder.hear("up")
        _stand_still(embedder.pid)
        embedder.go_on()
        assert embedder.hear("busy") == ["done\n", "running"]
        assert embedder.hear("idle") == "stopped"
