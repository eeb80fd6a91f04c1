"""Servers killed at every step of an execution: nothing lost, nothing run twice (L1 to L4).

FI-01 to FI-05, FI-29. The control of each kill is that the server is gone and the client got no
answer; the witness is the ledger, which the server writes outside every sandbox.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.server.crashes import (
    House,
    died,
    ended,
    events,
    house,
    posted,
    program,
    selected,
    submitted,
    wait_until,
)
from kit.servers import BOB, new_sandbox

pytestmark = pytest.mark.timeout(240)  # servers are started several times in one test

KEYED = {"Idempotency-Key": "once"}


@pytest.fixture(params=["journal", "database alone"])
def writing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the servers of a test write to first."""
    monkeypatch.setenv("CELLWALL_JOURNAL", str(request.param == "journal").lower())


def _ids(made: House) -> list[str]:
    """Every execution that the database has, in order of acceptance."""
    return [row[0] for row in selected(made.database, "SELECT id FROM executions ORDER BY seq")]


@pytest.mark.parametrize("is_background", [False, True])
def test_killed_before_acceptance_nothing_ran(tmp_path: Path, is_background: bool) -> None:
    """FI-01."""
    with house(tmp_path) as made:
        client = made.start(kill="before:Accept").client()
        died(client, {"code": program("a"), "background": is_background}, **KEYED)
        client = made.start().client()
        assert (_ids(made), made.ledger) == ([], [])
        again = client.post("/execute", json={"code": program("a")}, headers=KEYED)
        assert (again.json()["stdout"], made.ledger) == ("a\n", ["a"])
        assert "idempotent-replay" not in again.headers


@pytest.mark.usefixtures("writing")
@pytest.mark.parametrize("point", ["after:Accept", "before:Started"])
def test_killed_after_acceptance_it_runs_once(tmp_path: Path, point: str) -> None:
    """FI-02: also when its caller never heard of it, who finds it by the key."""
    body = {"code": program("a"), "background": True}
    with house(tmp_path) as made:
        server = made.start(kill=point)
        if point == "after:Accept":
            died(server.client(), body, **KEYED)
        else:
            server.client().post("/execute", json=body, headers=KEYED)
        server.process.wait()
        assert made.ledger == []
        client = made.start().client()
        again = client.post("/execute", json=body, headers=KEYED)
        assert (again.status_code, again.headers["idempotent-replay"]) == (202, "true")
        assert ended(client, again.json()["execution_id"])["stdout"] == "a\n"
        assert made.ledger == ["a"]
        made.kill(made.servers[-1])
        client = made.start().client()
        assert ended(client, again.json()["execution_id"])["stdout"] == "a\n"
        assert made.ledger == ["a"]


def test_queued_call_of_a_client_that_went_with_the_server_is_cancelled(tmp_path: Path) -> None:
    """FI-02 for what was to end with its connection: it does not run for nobody."""
    with house(tmp_path, most_running=1) as made:
        server = made.start()
        submitted(server.client(), program("long", "import time\ntime.sleep(60)"))
        wait_until(lambda: made.ledger == ["long"])
        with server.connect() as sock:
            sock.sendall(posted("/execute", {"code": program("waits")}))
            wait_until(lambda: len(_ids(made)) == 2)
            made.kill(server)
        client = made.start().client()
        assert [ended(client, each)["verdict"] for each in _ids(made)] == [
            "interrupted",
            "cancelled",
        ]
        assert made.ledger == ["long"]


@pytest.mark.usefixtures("writing")
@pytest.mark.parametrize("point", ["after:Started", "at:code", "before:Ended"])
def test_killed_after_the_start_it_is_interrupted_and_never_runs_again(
    tmp_path: Path, point: str
) -> None:
    """FI-03, FI-04."""
    with house(tmp_path) as made:
        server = made.start(kill=point)
        execution = submitted(server.client(), program("a"))
        server.process.wait(40)
        ran = made.ledger
        assert ran == ([] if point == "after:Started" else ["a"])
        client = made.start().client()
        value = ended(client, execution)
        assert (value["status"], value["verdict"]) == ("error", "interrupted")
        assert value["failure"]["code"] == "interrupted"
        assert "the server ended" in value["failure"]["message"]
        end = events(client, execution)[-1]
        assert (end["type"], end["verdict"]) == ("end", "interrupted")
        assert end["failure"]["code"] == "interrupted"
        client.post("/execute", json={"code": program("later")})
        assert made.ledger == [*ran, "later"]


@pytest.mark.usefixtures("writing")
def test_killed_after_the_end_was_written_the_end_stays(tmp_path: Path) -> None:
    """FI-04, the other side: nobody was told, but the result is there."""
    with house(tmp_path) as made:
        body = {"code": program("a", "result = {'n': 1}")}
        died(made.start(kill="after:Ended").client(), body, **KEYED)
        client = made.start().client()
        again = client.post("/execute", json=body, headers=KEYED)
        assert again.headers["idempotent-replay"] == "true"
        value = again.json()
        assert (value["stdout"], value["result"], value["verdict"]) == ("a\n", {"n": 1}, "ok")
        kinds = [event["type"] for event in events(client, value["execution_id"])]
        assert kinds == ["stdout", "value", "end"]
        assert made.ledger == ["a"]


def test_killed_while_artifacts_are_copied_there_is_none(tmp_path: Path) -> None:
    """FI-05: whole or absent."""
    with house(tmp_path) as made:
        code = program("a", "open('out.bin', 'wb').write(b'x' * 1000000)")
        server = made.start(kill="at:collect")
        execution = submitted(server.client(), code, collect=["out.bin"])
        server.process.wait(40)
        client = made.start().client()
        value = ended(client, execution)
        assert (value["verdict"], value["artifacts"]) == ("interrupted", [])
        whole = client.post("/execute", json={"code": code, "collect": ["out.bin"]}).json()
        made.kill(made.servers[-1])
        kept = ended(made.start().client(), whole["execution_id"])
        assert kept == whole
        assert kept["artifacts"][0]["size"] == 1_000_000


def test_killed_mid_run_its_processes_go_by_themselves(tmp_path: Path) -> None:
    """FI-03: before anybody comes back to sweep."""
    with house(tmp_path) as made:
        server = made.start()
        submitted(server.client(), program("a", "import time\ntime.sleep(60)"))
        wait_until(lambda: made.ledger)
        below = _below(server.process.pid)
        assert len(below) >= 3
        made.kill(server)
        wait_until(lambda: not [pid for pid, began in below.items() if _began(pid) == began], 10)


def test_sandboxes_go_before_the_server_when_memory_ends(tmp_path: Path) -> None:
    """FI-17: what the kernel kills first; a killed server is the same as above."""
    with house(tmp_path) as made:
        server = made.start()
        execution = submitted(server.client(), program("a", "import time\ntime.sleep(60)"))
        wait_until(lambda: made.ledger)
        scores = [_oom_score(pid) for pid in _below(server.process.pid)]
        assert max(scores) >= 500 > _oom_score(server.process.pid)
        assert len([score for score in scores if score >= 500]) >= 3  # fork-server, init, context
        server.client().delete(f"/executions/{execution}")


def _oom_score(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))
    except OSError:
        return 0


def _began(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _below(pid: int) -> dict[int, str]:
    """Return pid and start time of every descendant."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8")
            except OSError:
                continue
            parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(name))
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            began = _began(child)
            if began is not None:
                found[child] = began
            todo.append(child)
    return found


def test_sandboxes_of_a_killed_server_are_shown_as_stopped(tmp_path: Path) -> None:
    """FI-29: sandboxes, what ran in them, and whose they were."""
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        sandbox = new_sandbox(client, name="box", metadata={"k": "v"})
        before = client.get(f"/sandboxes/{sandbox}").json()
        cell = client.post(f"/sandboxes/{sandbox}/execute", json={"code": "x = 1\nprint(x)"})
        stuck = {"code": "import time\nprint(2, flush=True)\ntime.sleep(60)"}
        with client.stream("POST", f"/sandboxes/{sandbox}/execute", json=stuck) as answer:
            lines = answer.iter_lines()
            next(lines)
            made.kill(server)
        server = made.start()
        client = server.client()
        after = client.get(f"/sandboxes/{sandbox}").json()
        assert (after["status"], after["ended_because"]) == ("stopped", "its server ended")
        changed = {"status", "expires_at", "ended_because"}
        assert {k: v for k, v in after.items() if k not in changed} == {
            k: v for k, v in before.items() if k not in changed
        }
        assert [each["id"] for each in client.get("/sandboxes").json()["sandboxes"]] == [sandbox]
        refused = client.post(f"/sandboxes/{sandbox}/execute", json={"code": "1"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            410,
            "sandbox_unavailable",
        )
        assert client.delete(f"/sandboxes/{sandbox}").json()["message"] == "it had ended"
        assert ended(client, cell.headers["x-execution-id"])["stdout"] == "1\n"
        cut = ended(client, answer.headers["x-execution-id"])
        assert (cut["verdict"], cut["sandbox_id"]) == ("interrupted", sandbox)
        assert server.client(BOB).get(f"/sandboxes/{sandbox}").status_code == 404
        stranger = server.client(BOB).get(f"/executions/{cut['execution_id']}")
        assert stranger.status_code == 404


def test_events_go_on_by_number_after_a_restart(tmp_path: Path) -> None:
    """L4: every event once, from any number, in both formats."""
    with house(tmp_path) as made:
        server = made.start()
        code = program("a", "import sys\nfor n in range(5):\n    print(n, flush=True)\n"
                            "    sys.stderr.write('.')\n    sys.stderr.flush()")  # fmt: skip
        value = server.client().post("/execute", json={"code": code}).json()
        execution = value["execution_id"]
        before = events(server.client(), execution)
        made.kill(server)
        client = made.start().client()
        assert events(client, execution) == before
        assert [event["seq"] for event in before] == list(range(1, len(before) + 1))
        assert events(client, execution, after=3) == before[3:]
        sse = client.get(
            f"/executions/{execution}/events",
            headers={"Accept": "text/event-stream", "Last-Event-ID": str(len(before) - 1)},
        )
        assert sse.text.startswith(f"id: {len(before)}\nevent: end\n")
        assert client.get(f"/executions/{execution}").json() == value
