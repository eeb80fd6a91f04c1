"""Background commands and terminals go on over a restart of their server (design/0040).

The witnesses are what only the running program has: its counter, its pid, a variable of its shell;
the control, in each case, is a server that keeps no sessions, or a command that was not kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from cellwall.runtimes.jail.keeping.client import KeeperClient
from kit.server.crashes import House
from kit.server.kept_house import kept
from kit.servers import ALICE, BOB, Server, new_sandbox, run_cell, state_of
from kit.waiting import wait_until

pytestmark = pytest.mark.root
COUNTS = 'n=0; while read x; do n=$((n+1)); echo "$n $x $$"; done; exit 5'
SPINS = """
import time
while time.process_time() < 0.8: pass
open("on", "w")
input()
while True: pass
"""
WAYS = ["killed", "stopped"]


def end(house: House, server: Server, way: str) -> None:
    if way == "killed":
        house.kill(server)
    else:
        assert server.stop() == 0


class Started:
    """One sandbox with one command in the background."""

    def __init__(
        self, server: Server, command: str, limits: dict[str, int] | None = None, **body: object
    ) -> None:
        self.server = server
        self._clients: dict[int, httpx.Client] = {}
        self.sandbox = f"/sandboxes/{new_sandbox(self.client, limits=limits or {})}"
        answer = self.client.post(
            f"{self.sandbox}/commands", json={"command": command, "background": True, **body}
        )
        assert answer.status_code == 201, answer.text
        self.id: str = answer.json()["id"]
        self.path = f"{self.sandbox}/commands/{self.id}"

    @property
    def client(self) -> httpx.Client:
        """One for each server: a new one reads all certificates of the machine."""
        if self.server.port not in self._clients:
            self._clients[self.server.port] = self.server.client()
        return self._clients[self.server.port]

    def say(self, line: str) -> None:
        assert self.client.post(f"{self.path}/stdin", content=line.encode()).status_code == 200

    def facts(self, wait: int = 0) -> dict[str, Any]:
        answer = self.client.get(self.path, params={"wait": wait})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        answer = self.client.get(f"{self.path}/events", params={"after": after})
        return [json.loads(line) for line in answer.text.splitlines() if line.strip()]

    def ended(self) -> dict[str, Any]:
        found = self.facts(wait=20)
        assert found["status"] == "ended", found
        return found


@pytest.mark.parametrize("way", WAYS)
def test_command_counts_on_over_two_restarts(tmp_path: Path, way: str) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        work = Started(server, COUNTS)
        before = work.facts()
        assert before["kept"] is True
        work.say("a\n")
        for word in ("b", "c"):
            end(house, server, way)
            server = work.server = house.start()
            work.say(f"{word}\n")
        work.client.post(f"{work.path}/stdin", params={"close": True})
        after = work.ended()
        assert (after["verdict"], after["exit_code"]) == ("nonzero_exit", 5)
        assert after["pid"] == before["pid"]
        assert after["started_at"] == before["started_at"]
        assert after["stdout"] == f"3 c {before['pid']}\n"
        assert "was restarted while it ran" in " ".join(after["outcome"]["notes"])


def test_events_have_higher_numbers_and_say_what_is_missing(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        work = Started(server := house.start(), COUNTS)
        work.say("a\n")
        wait_until(lambda: seen(work) > 0, "it answered")
        last = seen(work)
        house.kill(server)
        work.server = house.start()
        work.say("b\n")
        work.client.post(f"{work.path}/stdin", params={"close": True})
        work.ended()
        gap, output, over = work.events(after=last)
        assert (gap["type"], gap["after"], gap["lost"]) == ("gap", last, None)
        assert gap["because"] == "the server was restarted"
        assert gap["unread_bytes"] >= 0
        assert gap["next"] == output["seq"] > last
        assert output["text"].startswith("2 b ")
        assert (over["type"], over["seq"]) == ("end", output["seq"] + 1)


def seen(work: Started) -> int:
    """Number of the last event there is."""
    with work.client.stream("GET", f"{work.path}/events") as answer:
        for line in answer.iter_lines():
            return int(json.loads(line)["seq"])
    return 0


def test_what_was_written_and_not_read_is_counted(tmp_path: Path) -> None:
    """No server reads 100,000 bytes, and the command that wrote them is not blocked by that."""
    with kept(tmp_path) as house:
        work = Started(
            server := house.start(), "read x; head -c 100000 /dev/zero; touch on; read x"
        )
        house.kill(server)
        work.server = house.start()
        house.kill(work.server)
        server = work.server = house.start()
        work.say("go\n")
        wait_until(partial(has_file, work, "on"), "it has written")
        assert sum(len(each.get("text", "")) for each in first_events(work)) == 100_000


def first_events(work: Started) -> list[dict[str, Any]]:
    work.client.post(f"{work.path}/stdin", params={"close": True})
    work.ended()
    return work.events()


def has_file(work: Started, name: str) -> bool:
    answer = work.client.get(f"{work.sandbox}/files", params={"path": name})
    return answer.status_code == 200


def test_flood_while_no_server_reads_goes_on(tmp_path: Path) -> None:
    """Eight megabytes fill the socket, and init's queue; the command waits, and then ends."""
    with kept(tmp_path) as house:
        code = "read x; head -c 8000000 /dev/zero; exit 4"
        work = Started(server := house.start(), code)
        work.say("go\n")
        house.kill(server)
        work.server = house.start()
        assert work.ended()["exit_code"] == 4


def test_command_that_ends_while_no_server_runs_has_its_verdict(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        work = Started(server := house.start(), "read x; sleep 0.5; exit 6")
        work.say("go\n")
        house.kill(server)
        time.sleep(1)
        work.server = house.start()
        found = work.ended()
        assert (found["verdict"], found["exit_code"]) == ("nonzero_exit", 6)


def test_wall_time_goes_on_as_it_was(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        work = Started(server := house.start(), "sleep 600", timeout=3)
        house.kill(server)
        work.server = house.start()
        found = work.ended()
        assert found["verdict"] == "wall_time"
        assert 2.5 < found["outcome"]["usage"]["wall_s"] < 15


def test_cpu_time_from_before_counts(tmp_path: Path) -> None:
    """It has used most of its second before; the control is that others' time does not count."""
    with kept(tmp_path) as house:
        limits = {"cpu_s": 1, "wall_s": 60}
        work = Started(server := house.start(), f"python3 -c '{SPINS}'", limits, timeout=60)
        wait_until(partial(has_file, work, "on"), "it has spun")
        busy = "import time\nt = time.process_time()\nwhile time.process_time() < t + 0.6: pass"
        assert run_cell(work.client, work.sandbox, busy)["verdict"] == "ok"
        house.kill(server)
        work.server = house.start()
        time.sleep(0.5)
        assert work.facts()["status"] == "running"
        work.say("\n")
        found = work.ended()
        assert found["verdict"] == "cpu_time", found
        assert found["outcome"]["usage"]["cpu_s"] < 1.5


def test_kill_and_signals_reach_it(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        trap = "trap 'echo term; exit 9' TERM; echo up; while true; do sleep 0.1; done"
        work = Started(server := house.start(), trap)
        wait_until(lambda: seen(work) > 0, "its trap is set")
        house.kill(server)
        work.server = house.start()
        assert work.client.post(f"{work.path}/signal", json={"signal": "TERM"}).status_code == 200
        found = work.ended()
        assert (found["exit_code"], found["stdout"]) == (9, "term\n")


def test_what_was_paused_with_a_command_is_paused_again(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        work = Started(server := house.start(), COUNTS, timeout=30)
        assert work.client.post(f"{work.sandbox}/pause").status_code == 200
        house.kill(server)
        work.server = house.start()
        wait_until(
            lambda: work.client.get(work.sandbox).json()["status"] == "paused", "it is paused"
        )
        assert work.facts()["status"] == "running"
        work.say("a\n")
        work.client.post(f"{work.path}/stdin", params={"close": True})
        assert work.ended()["stdout"].startswith("1 a ")


@pytest.mark.parametrize("moment", ["before:take_on", "after:take_on"])
def test_killed_while_it_takes_over_the_next_goes_on(tmp_path: Path, moment: str) -> None:
    with kept(tmp_path) as house:
        work = Started(server := house.start(), COUNTS)
        body = {"argv": ["sleep", "100"], "background": True}
        other = work.client.post(f"{work.sandbox}/commands", json=body).json()["id"]
        house.kill(server)
        with pytest.raises(AssertionError, match="did not start"):
            house.start(kill=moment)
        work.server = house.start()
        listed = work.client.get(f"{work.sandbox}/commands").json()["commands"]
        assert [each["id"] for each in listed if each["status"] == "running"] == [work.id, other]
        work.say("a\n")
        work.client.post(f"{work.path}/stdin", params={"close": True})
        assert work.ended()["stdout"].startswith("1 a ")


def test_other_tenants_have_none_of_it(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        work = Started(server := house.start(), "sleep 100")
        house.kill(server)
        work.server = house.start()
        other = work.server.client(BOB)
        assert other.get(work.path).status_code == 404
        assert other.post(f"{work.path}/stdin", content=b"x").status_code == 404
        assert work.facts()["status"] == "running"


def test_without_the_setting_it_ends(tmp_path: Path) -> None:
    """The control: it is the keeper that keeps it."""
    with kept(tmp_path, keep_sessions=False) as house:
        work = Started(server := house.start(), "sleep 100")
        assert work.facts()["kept"] is False
        house.kill(server)
        work.server = house.start()
        assert work.client.get(work.path).status_code in {404, 410}


def test_more_than_are_kept_say_so(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        work = Started(server := house.start(), "sleep 100")
        ids = [work.id]
        for _ in range(32):
            body = {"argv": ["sleep", "100"], "background": True}
            ids.append(work.client.post(f"{work.sandbox}/commands", json=body).json()["id"])
        found = {
            each["id"]: each["kept"]
            for each in work.client.get(f"{work.sandbox}/commands").json()["commands"]
        }
        assert [found[each] for each in ids] == [True] * 32 + [False]
        assert "command not kept" in work.client.get(f"{work.sandbox}/logs").text
        house.kill(server)
        work.server = house.start()
        listed = work.client.get(f"{work.sandbox}/commands").json()["commands"]
        assert [each["id"] for each in listed if each["status"] == "running"] == ids[:32]


def test_record_holds_no_variable_and_no_output(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        work = Started(house.start(), "echo $WORD-out; sleep 100", env={"WORD": "hushhush"})
        wait_until(lambda: seen(work) > 0, "it has written")
        house.kill(work.server)
        keeper = KeeperClient.find(state_of(house.folder))
        assert keeper is not None
        taken = keeper.take(work.sandbox.rpartition("/")[2])
        for fd in taken.descriptors:
            os.close(fd)
        keeper.close()
        assert work.id.encode() in taken.record
        assert b"hushhush" not in taken.record


# -- terminals ---------------------------------------------------------------------------------


@contextmanager
def terminal(
    server: Server, sandbox: str, query: str = "", key: str = ALICE
) -> Iterator[tuple[ClientConnection, dict[str, Any]]]:
    address = f"ws://127.0.0.1:{server.port}{sandbox}/terminal{query}"
    with connect(address, additional_headers={"X-API-Key": key}, max_size=None) as socket:
        yield socket, json.loads(socket.recv(timeout=20))


def read_until(socket: ClientConnection, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        message = socket.recv(timeout=20)
        assert isinstance(message, bytes), message
        found += message
    return found


@pytest.mark.parametrize("way", WAYS)
def test_shell_keeps_its_variables_and_is_attached_again(tmp_path: Path, way: str) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        sandbox = f"/sandboxes/{new_sandbox(server.client())}"
        with terminal(server, sandbox) as (socket, hello):
            socket.send(b"word=kept; echo set-$word\n")
            read_until(socket, b"set-kept")
            end(house, server, way)
        for _ in range(2):
            server = house.start()
            with terminal(server, sandbox, f"/{hello['command_id']}?rows=50&cols=90") as (
                socket,
                again,
            ):
                assert (again["type"], again["rows"], again["cols"]) == ("attached", 50, 90)
                socket.send(b"echo again-$word\n")
                read_until(socket, b"again-kept")
                end(house, server, way)
        server = house.start()
        with terminal(server, sandbox, f"/{hello['command_id']}") as (socket, _):
            socket.send(b"exit 3\n")
            while isinstance(message := socket.recv(timeout=20), bytes):
                pass
            assert json.loads(message)["outcome"]["exit_code"] == 3


def test_output_that_was_unread_at_the_kill_does_not_block_it(tmp_path: Path) -> None:
    """`yes` has filled its window, which the dead server had granted."""
    with kept(tmp_path) as house:
        server = house.start()
        sandbox = f"/sandboxes/{new_sandbox(server.client())}"
        with terminal(server, sandbox, "?command=yes") as (socket, hello):
            read_until(socket, b"y")
            time.sleep(0.5)
            house.kill(server)
        server = house.start()
        with terminal(server, sandbox, f"/{hello['command_id']}") as (socket, _):
            got = 0
            while got < 2_000_000:
                got += len(socket.recv(timeout=20))
            socket.send(b"\x03")
            while isinstance(message := socket.recv(timeout=20), bytes):
                pass
            assert json.loads(message)["outcome"]["signal"] == 2


def test_another_tenant_attaches_to_nothing(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        sandbox = f"/sandboxes/{new_sandbox(server.client())}"
        with terminal(server, sandbox) as (_, hello):
            house.kill(server)
        server = house.start()
        place = f"/{hello['command_id']}"
        with pytest.raises(InvalidStatus) as refused, terminal(server, sandbox, place, BOB):
            pass
        assert refused.value.response.status_code == 404
        with terminal(server, sandbox, place) as (_, again):
            assert again["command_id"] == hello["command_id"]


def test_after_a_restart_a_client_that_leaves_hangs_up_as_before(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        sandbox = f"/sandboxes/{new_sandbox(server.client())}"
        with terminal(server, sandbox, "?command=exec%20sleep%20100") as (_, hello):
            house.kill(server)
        server = house.start()
        path = f"{sandbox}/commands/{hello['command_id']}"
        with terminal(server, sandbox, f"/{hello['command_id']}"):
            assert server.client().get(path).json()["status"] == "running"
        assert server.client().get(path, params={"wait": 20}).json()["signal"] in {1, 9}


def test_stop_without_the_setting_hangs_up(tmp_path: Path) -> None:
    """The control of the graceful stop."""
    with kept(tmp_path, keep_sessions=False) as house:
        server = house.start()
        sandbox = f"/sandboxes/{new_sandbox(server.client())}"
        with terminal(server, sandbox) as (socket, _):
            assert server.stop() == 0
            with pytest.raises(ConnectionClosed):
                list(iter(partial(socket.recv, timeout=20), None))
        found = house.start().client().get(sandbox).json()
        assert found["status"] == "stopped"
