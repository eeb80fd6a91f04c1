"""One server per state directory, stopped with work under way, stalled, full, called twice.

FI-11 and FI-14 from the server's side, FI-25, FI-28, FI-30, FI-32, FI-43; API-25.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from kit.server.crashes import ended, events, house, program, submitted, wait_until
from kit.servers import ADMIN, BOB, Server, error_of, new_sandbox

pytestmark = pytest.mark.timeout(240)  # servers are started several times in one test

SLEEP = "import time\ntime.sleep({})"


# -- FI-30, FI-32: who has the state directory ---------------------------------------------------


def test_second_server_on_one_state_directory_is_refused(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        environ = {**os.environ, "CELLWALL_STATE_DIR": str(tmp_path / "state")}
        argv = [sys.executable, "-m", "cellwall.apps.cli.main", "serve", "--port", "0"]
        second = subprocess.run(
            argv, env=environ, capture_output=True, text=True, timeout=40, check=False
        )
        assert second.returncode != 0
        assert f"pid {server.process.pid}" in second.stderr
        assert "used by another server" in second.stderr
        assert server.client().get("/health").status_code == 200
        made.kill(server)
        made.start()  # the control: it was the first one that kept the second out


def test_lock_of_a_dead_server_whose_pid_is_somebody_elses_stops_nobody(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        path = tmp_path / "state" / "server" / "lock"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"pid": os.getpid(), "boot_id": "x", "since": 0}))
        server = made.start()
        words = json.loads(path.read_text(encoding="utf-8"))
        assert words["pid"] == server.process.pid
        assert words["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        with path.open() as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)


# -- FI-43: the wish to stop ---------------------------------------------------------------------


def test_stop_lets_what_runs_end_and_refuses_what_is_new(tmp_path: Path) -> None:
    with house(tmp_path, most_running=2, stop_s=20) as made:
        server = made.start()
        client = server.client()
        answers: list[httpx.Response] = []
        code = program("short", SLEEP.format(3))
        waiting = threading.Thread(
            target=lambda: answers.append(server.client().post("/execute", json={"code": code}))
        )
        waiting.start()
        wait_until(lambda: made.ledger == ["short"])
        server.process.send_signal(signal.SIGTERM)
        refused = httpx.Response(200)

        def is_refused() -> bool:
            nonlocal refused
            refused = client.post("/execute", json={"code": "1"})
            return refused.status_code == 503

        wait_until(is_refused)
        assert error_of(refused)["code"] == "capacity"
        assert int(refused.headers["retry-after"]) >= 1
        assert client.post("/sandboxes", json={}).status_code == 503
        assert client.get("/health").status_code == 200
        waiting.join()
        assert (answers[0].status_code, answers[0].json()["stdout"]) == (200, "short\n")
        assert server.process.wait(30) == 0


def test_stop_interrupts_what_does_not_end_and_keeps_what_waits(tmp_path: Path) -> None:
    """A hundred runs: some run, most wait; two of them in the foreground."""
    with house(tmp_path, most_running=4, stop_s=1) as made:
        server = made.start()
        client = server.client()
        long = [submitted(client, program(f"l{n}", SLEEP.format(60))) for n in range(4)]
        queued = [submitted(client, program(f"q{n}")) for n in range(94)]
        wait_until(lambda: len(made.ledger) == 4)
        answers: dict[str, httpx.Response] = {}

        def post(name: str, **headers: str) -> None:
            body = {"code": program(name)}
            answers[name] = server.client().post("/execute", json=body, headers=headers)

        threads = [
            threading.Thread(target=post, args=("f0",)),
            threading.Thread(target=post, args=("f1",), kwargs={"Idempotency-Key": "f1"}),
        ]
        for thread in threads:
            thread.start()
        admin = server.client(ADMIN)
        wait_until(lambda: admin.get("/stats").json()["server"]["queued"] == 96)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.process.wait(30) == 0
        assert time.monotonic() - began < 25
        assert [answers[name].status_code for name in ("f0", "f1")] == [503, 503]
        assert len(made.ledger) == 4
        client = made.start().client()
        for execution in long:
            value = ended(client, execution)
            assert (value["verdict"], value["failure"]["code"]) == ("interrupted", "interrupted")
            assert value["stdout"].startswith("l")  # what it said until then is kept
            assert events(client, execution)[-1]["verdict"] == "interrupted"
        assert [ended(client, each)["verdict"] for each in queued] == ["ok"] * 94
        body = {"code": program("f1")}
        again = client.post("/execute", json=body, headers={"Idempotency-Key": "f1"})
        assert (again.json()["stdout"], again.headers["idempotent-replay"]) == ("f1\n", "true")
        assert sorted(made.ledger) == sorted(
            [*(f"l{n}" for n in range(4)), *(f"q{n}" for n in range(94)), "f1"]
        )


# -- FI-28: the server stands still --------------------------------------------------------------


def test_server_that_stood_still_kills_no_healthy_run(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        sandbox = new_sandbox(client)
        execution = submitted(client, program("a", SLEEP.format(1) + "\nprint('end')"))
        wait_until(lambda: made.ledger == ["a"])
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(3)  # longer than the program: its end waits in the channel
        server.process.send_signal(signal.SIGCONT)
        assert ended(client, execution)["stdout"] == "a\nend\n"
        cell = client.post(
            f"/sandboxes/{sandbox}/execute",
            json={"code": "print(1)"},
            headers={"Accept": "application/json"},
        )
        assert cell.json()["stdout"] == "1\n"


# -- FI-27: the wall clock jumps -----------------------------------------------------------------


@pytest.mark.parametrize("step_s", [86_400, -86_400])
def test_steps_of_the_wall_clock_end_and_forget_nothing(tmp_path: Path, step_s: int) -> None:
    with house(tmp_path, retention_s=8) as made:
        client = made.start().client()
        sandbox = new_sandbox(client)
        keyed = {"Idempotency-Key": "k"}
        before = client.post("/execute", json={"code": program("a")}, headers=keyed).json()
        path = f"/executions/{before['execution_id']}"
        runs = submitted(client, program("b", SLEEP.format(4)), timeout=20)
        wait_until(lambda: made.ledger == ["a", "b"])
        (tmp_path / "clock").write_text(str(step_s))
        value = ended(client, runs)
        day = 86_400_000
        assert (value["verdict"], 3_000 < value["time_ms"] < day / 2) == ("ok", True)
        assert client.get(path).json() == before
        assert client.get(f"/sandboxes/{sandbox}").json()["status"] == "running"
        again = client.post("/execute", json={"code": program("a")}, headers=keyed)
        assert again.headers["idempotent-replay"] == "true"
        shown = client.post("/execute", json={"code": "1"}).json()["started_at"]
        moved = datetime.fromisoformat(shown) - datetime.fromisoformat(before["started_at"])
        assert abs(moved.total_seconds() - step_s) < 600  # the control: it did jump
        wait_until(lambda: client.get(path).status_code == 404)  # retention still ends


# -- FI-25: deleted and cancelled at every stage -------------------------------------------------


def test_cancel_of_what_waits_of_what_runs_and_of_what_has_ended(tmp_path: Path) -> None:
    with house(tmp_path, most_running=1) as made:
        client = made.start().client()
        runs = submitted(client, program("runs", SLEEP.format(60)))
        waits = submitted(client, program("waits"))
        wait_until(lambda: made.ledger == ["runs"])
        for execution in (waits, runs):
            for message in ("cancelled", "it had ended"):
                answer = client.delete(f"/executions/{execution}")
                assert (answer.status_code, answer.json()["message"]) == (200, message)
            assert ended(client, execution)["verdict"] == "cancelled"
            assert events(client, execution)[-1]["verdict"] == "cancelled"
        made.kill(made.servers[-1])
        client = made.start().client()
        assert [ended(client, each)["verdict"] for each in (waits, runs)] == ["cancelled"] * 2
        assert made.ledger == ["runs"]


def test_sandbox_deleted_twice_at_once_while_something_runs(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        sandbox = new_sandbox(client)
        body = {"code": "import time\nprint(1, flush=True)\ntime.sleep(60)"}
        with client.stream("POST", f"/sandboxes/{sandbox}/execute", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            found: list[int] = []
            threads = [
                threading.Thread(
                    target=lambda: found.append(
                        server.client().delete(f"/sandboxes/{sandbox}").status_code
                    )
                )
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [200] * 4
            assert json.loads(list(lines)[-1])["verdict"] == "cancelled"
        assert ended(client, answer.headers["x-execution-id"])["verdict"] == "cancelled"


# -- FI-11, FI-14: the store cannot write --------------------------------------------------------


@pytest.mark.parametrize("is_background", [False, True])
def test_full_disk_before_the_start_is_an_answer_and_nothing_ran(
    tmp_path: Path, is_background: bool
) -> None:
    with house(tmp_path) as made:
        client = made.start(full="Accept").client()
        made.full.touch()
        body = {"code": program("a"), "background": is_background}
        refused = client.post("/execute", json=body, headers={"Idempotency-Key": "k"})
        assert (refused.status_code, error_of(refused)["code"]) == (507, "store_full")
        assert made.ledger == []
        made.full.unlink()
        taken = client.post("/execute", json=body, headers={"Idempotency-Key": "k"})
        assert ended(client, taken.json()["execution_id"])["stdout"] == "a\n"
        assert made.ledger == ["a"]


def test_full_disk_before_a_turn_lets_itwait_until(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        client = made.start(full="Started").client()
        made.full.touch()
        execution = submitted(client, program("a"))
        assert client.get(f"/executions/{execution}", params={"wait": 2}).json()["verdict"] is None
        assert made.ledger == []
        made.full.unlink()
        assert ended(client, execution)["stdout"] == "a\n"
        assert made.ledger == ["a"]


def test_full_disk_at_the_end_costs_no_result(tmp_path: Path) -> None:
    with house(tmp_path, retained_executions=0) as made:
        client = made.start(full="Ended").client()
        made.full.touch()
        value = client.post("/execute", json={"code": program("a")}).json()
        assert (value["stdout"], value["verdict"]) == ("a\n", "ok")
        assert "not on disk yet" in value["notes"][-1]
        path = f"/executions/{value['execution_id']}"
        assert client.get(path).json() == value
        made.full.unlink()
        wait_until(lambda: client.get(path).json()["notes"] == value["notes"][:-1])
        made.kill(made.servers[-1])
        kept = made.start().client().get(path).json()
        assert kept == {**value, "notes": value["notes"][:-1]}


def test_without_a_store_everything_is_the_same_until_the_end(tmp_path: Path) -> None:
    with house(tmp_path, store="none", most_running=1) as made:
        server = made.start()
        client = server.client()
        keyed = {"Idempotency-Key": "k"}
        first = client.post("/execute", json={"code": program("a")}, headers=keyed).json()
        again = client.post("/execute", json={"code": program("a")}, headers=keyed).json()
        assert again == first
        long = submitted(client, program("b", SLEEP.format(60)))
        waits = submitted(client, program("c"))
        assert client.get(f"/executions/{waits}").json()["status"] == "queued"
        wait_until(lambda: made.ledger == ["a", "b"])
        client.delete(f"/executions/{long}")
        assert ended(client, waits)["stdout"] == "c\n"
        made.kill(server)
        client = made.start().client()
        assert client.get(f"/executions/{waits}").status_code == 404
        assert not (tmp_path / "state" / "server" / "cellwall.db").exists()
        assert made.ledger == ["a", "b", "c"]


# -- API-25: keys --------------------------------------------------------------------------------


def test_idempotency_keys_outlive_the_server(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        keyed = {"Idempotency-Key": "k"}
        server = made.start()
        first = server.client().post("/execute", json={"code": program("a")}, headers=keyed)
        box = server.client().post("/sandboxes", json={}, headers={"Idempotency-Key": "box"})
        made.kill(server)
        server = made.start()
        client = server.client()
        again = client.post("/execute", json={"code": program("a")}, headers=keyed)
        assert again.json() == first.json()
        streamed = client.post(
            "/execute",
            json={"code": program("a")},
            headers={**keyed, "Accept": "application/x-ndjson"},
        )
        assert [json.loads(line)["type"] for line in streamed.text.splitlines()] == [
            "stdout",
            "end",
        ]
        other = client.post("/execute", json={"code": program("b")}, headers=keyed)
        assert (other.status_code, error_of(other)["code"]) == (409, "idempotency")
        theirs = server.client(BOB).post("/execute", json={"code": program("b")}, headers=keyed)
        assert theirs.json()["stdout"] == "b\n"
        stopped = client.post("/sandboxes", json={}, headers={"Idempotency-Key": "box"})
        assert (stopped.json()["id"], stopped.json()["status"]) == (box.json()["id"], "stopped")
        assert made.ledger == ["a", "b"]


def test_key_whose_answer_expired_runs_nothing_again(tmp_path: Path) -> None:
    with house(tmp_path, retention_s=1) as made:
        client = made.start().client()
        keyed = {"Idempotency-Key": "k"}
        body = {"code": program("a")}
        first = client.post("/execute", json=body, headers=keyed).json()
        path = f"/executions/{first['execution_id']}"
        wait_until(lambda: client.get(path).status_code == 404)
        again = client.post("/execute", json=body, headers=keyed)
        assert (again.status_code, error_of(again)["code"]) == (410, "gone")
        assert made.ledger == ["a"]


def test_same_call_twice_at_once_runs_once(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        for is_background in (False, True):
            body = {"code": program(f"n{is_background}"), "background": is_background}
            answers: list[httpx.Response] = []
            threads = [
                threading.Thread(target=_post, args=(server, body, answers)) for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({each.json()["execution_id"] for each in answers}) == 1
            assert len([a for a in answers if "idempotent-replay" not in a.headers]) == 1
            ended(server.client(), answers[0].json()["execution_id"])
        assert made.ledger == ["nFalse", "nTrue"]


def _post(server: Server, body: dict[str, object], answers: list[httpx.Response]) -> None:
    key = {"Idempotency-Key": f"same-{body['background']}"}
    answers.append(server.client().post("/execute", json=body, headers=key))
