"""Sandboxes that outlive their server (design/0040): killed under load, stopped, swept beside.

Each is known by what only it holds, a variable of its interpreter and a file; the witnesses are the
next server's answers and the kernel's list of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from cellwall.engine.engine import Engine
from cellwall.linux.cgroups import hierarchies
from kit.arena import descendants
from kit.copies.hostile import KEEPS_FILES, LOCKS
from kit.jail.control_groups import control_groups
from kit.server.kept_house import change_record, keeper_of, kept, load
from kit.servers import ALICE, BOB, Server, logged, new_sandbox, run_cell
from kit.waiting import is_alive, wait_until

pytestmark = pytest.mark.root
MANY = 20
ROUNDS = 3


def begun(client: httpx.Client, count: int) -> list[str]:
    """Make sandboxes, each with its number in a variable and in a file."""
    made = [new_sandbox(client, name=f"n{number}") for number in range(count)]
    for number, sandbox in enumerate(made):
        code = f"x = {number}; open('f', 'w').write('{number}')"
        assert run_cell(client, f"/sandboxes/{sandbox}", code)["verdict"] == "ok"
    return made


def check_all(client: httpx.Client, sandboxes: list[str]) -> None:
    """Each is there, once, and is itself."""
    listed = client.get("/sandboxes", params={"state": "running", "limit": 200}).json()
    assert sorted(each["id"] for each in listed["sandboxes"]) == sorted(sandboxes)
    for number, sandbox in enumerate(sandboxes):
        value = run_cell(client, f"/sandboxes/{sandbox}", "print(x, open('f').read())")
        assert value["stdout"] == f"{number} {number}\n", value


def test_killed_under_load_every_sandbox_is_there_once(tmp_path: Path) -> None:
    seed = random.Random(11)
    with kept(tmp_path) as house:
        server = house.start()
        sandboxes = begun(server.client(), MANY)
        for _ in range(ROUNDS):
            with load(server, sandboxes):
                time.sleep(seed.uniform(0.1, 1.5))
                house.kill(server)
            server = house.start()
            check_all(server.client(), sandboxes)
        client = server.client()
        assert client.get(f"/sandboxes/{sandboxes[0]}").json()["name"] == "n0"
        assert server.client(BOB).get(f"/sandboxes/{sandboxes[0]}").status_code == 404


def test_killed_with_connections_to_a_port_every_sandbox_is_there(tmp_path: Path) -> None:
    """Init ends the connections of a server that has gone, and tells the next one so."""
    listens = """
import socket
s = socket.create_server(("127.0.0.1", 8000))
import threading
threading.Thread(target=lambda: [s.accept() for _ in range(99)], daemon=True).start()
"""
    with kept(tmp_path) as house:
        server = house.start()
        sandboxes = begun(server.client(), 2)
        run_cell(server.client(), f"/sandboxes/{sandboxes[0]}", listens)
        for _ in range(ROUNDS):
            held = [server.connect() for _ in range(3)]
            for sock in held:
                path = f"/sandboxes/{sandboxes[0]}/ports/8000/"
                head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {ALICE}\r\n\r\n"
                sock.sendall(head.encode())
            wait_until(partial(has_connections, server, sandboxes[0], 3), "they are open inside")
            house.kill(server)
            for sock in held:
                sock.close()
            server = house.start()
            check_all(server.client(), sandboxes)


def has_connections(server: Server, sandbox: str, count: int) -> bool:
    """Report whether so many connections to a port of a sandbox are open inside."""
    look = "print(sum(l.split()[1].endswith(':1F40') and l.split()[3] == '01' "
    look += "for l in open('/proc/net/tcp').readlines()[1:]))"
    return int(run_cell(server.client(), f"/sandboxes/{sandbox}", look)["stdout"]) >= count


def test_one_that_came_back_from_hibernation_is_kept_under_its_id(tmp_path: Path) -> None:
    """Its processes are those of another sandbox; one that has none goes on, too."""
    with kept(tmp_path) as house:
        server = house.start()
        client = server.client()
        sandboxes = begun(client, 2)
        for sandbox in sandboxes:
            assert client.post(f"/sandboxes/{sandbox}/hibernate", json={}).status_code == 200
        assert client.post(f"/sandboxes/{sandboxes[0]}/resume").json()["status"] == "running"
        house.kill(server)
        client = house.start().client()
        assert client.get(f"/sandboxes/{sandboxes[1]}").json()["status"] == "hibernated"
        assert client.post(f"/sandboxes/{sandboxes[1]}/resume").json()["status"] == "running"
        check_all(client, sandboxes)


def test_stopped_in_order_they_stay_too(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        sandboxes = begun(server.client(), 3)
        before = server.client().get(f"/sandboxes/{sandboxes[0]}").json()
        assert server.stop() == 0
        client = house.start().client()
        check_all(client, sandboxes)
        after = client.get(f"/sandboxes/{sandboxes[0]}").json()
        same = ("created_at", "limits", "isolation", "template", "language")
        assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_without_the_setting_they_end_with_the_server(tmp_path: Path) -> None:
    """The control: it is the keeper that keeps them."""
    with kept(tmp_path, keep_sessions=False) as house:
        server = house.start()
        (sandbox,) = begun(server.client(), 1)
        house.kill(server)
        assert keeper_of(house) == 0
        found = house.start().client().get(f"/sandboxes/{sandbox}").json()
        assert (found["status"], found["ended_because"]) == ("stopped", "its server ended")


def test_what_ran_is_interrupted_and_its_context_is_free(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        (sandbox,) = begun(server.client(), 1)
        path = f"/sandboxes/{sandbox}"
        left = threading.Thread(target=partial(foreground, server, path))
        left.start()
        with at_work(server, sandbox, "import time\ny = 2\ntime.sleep(60)"):
            house.kill(server)
        left.join()
        client = house.start().client()
        assert run_cell(client, path, "print(x, y)")["stdout"] == "0 2\n"
        found = run_cell(client, path, "import subprocess as s\nprint(s.getoutput('ps -e'))")
        assert "sleep" not in found["stdout"]


def foreground(server: Server, path: str) -> None:
    """Wait for a command that does not end; it is another one's affair to end the server."""
    with contextlib.suppress(httpx.HTTPError):
        server.client().post(f"{path}/commands", json={"argv": ["sleep", "61"]})


def test_what_was_paused_is_paused_again_and_is_as_it_was(tmp_path: Path) -> None:
    """Twice, because the second server finds a freezer that the first one has made."""
    with kept(tmp_path) as house:
        server = house.start()
        client = server.client()
        first, second = (new_sandbox(client, resume=resume) for resume in ("auto", "manual"))
        for each in (first, second):
            assert run_cell(client, f"/sandboxes/{each}", "x = 41")["verdict"] == "ok"
            assert client.post(f"/sandboxes/{each}/pause").status_code == 200
        for _ in range(2):
            house.kill(server)
            server = house.start()
            client = server.client()
            wait_until(partial(are_paused, client, first, second), "both are paused")
        refused = client.post(f"/sandboxes/{second}/execute", json={"code": "x"})
        assert refused.status_code == 409
        assert client.post(f"/sandboxes/{second}/resume").status_code == 200
        assert frozen_groups(keeper_of(house))
        for each in (first, second):
            assert run_cell(client, f"/sandboxes/{each}", "print(x + 1)")["stdout"] == "42\n"
            assert client.delete(f"/sandboxes/{each}").status_code in {200, 204}
        wait_until(lambda: not frozen_groups(keeper_of(house)), "their freezers are removed")


def test_what_was_paused_in_a_cell_has_been_interrupted(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        (sandbox,) = begun(server.client(), 1)
        path = f"/sandboxes/{sandbox}"
        with at_work(server, sandbox, "import time\nwhile True: time.sleep(0.01)"):
            assert server.client().post(f"{path}/pause").status_code == 200
            house.kill(server)
        client = house.start().client()
        wait_until(partial(are_paused, client, sandbox), "it is paused")
        assert run_cell(client, path, "print(x)")["stdout"] == "0\n"


def test_keeper_that_is_killed_takes_paused_ones_with_it(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        (sandbox,) = begun(server.client(), 1)
        assert server.client().post(f"/sandboxes/{sandbox}/pause").status_code == 200
        inside = descendants(server.process.pid)
        house.kill(server)
        assert any(map(is_alive, inside))
        os.kill(keeper_of(house), signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, inside)), "all are gone")


def test_copies_and_their_source_are_there_after_a_restart(tmp_path: Path) -> None:
    """Descriptors came on their channels before; two restarts, because those are new channels."""
    with kept(tmp_path) as house:
        server = house.start()
        client = server.client()
        (source,) = begun(client, 1)
        made = client.post(f"/sandboxes/{source}/fork", json={"count": 2})
        assert made.status_code == 201, made.text
        copies = [each["sandbox"]["id"] for each in made.json()["forks"]]
        for _ in range(2):
            house.kill(server)
            server = house.start()
            for each in (source, *copies):
                value = run_cell(server.client(), f"/sandboxes/{each}", "print(x)")
                assert value["stdout"] == "0\n", value


@pytest.mark.parametrize("which", [0, 1], ids=["image", "base"])
def test_no_lock_tells_another_copy_anything_after_a_restart(tmp_path: Path, which: int) -> None:
    """M09, as `test_attack_copies` has it while the engine lives that locked the files."""
    look = "print(locked(fcntl.LOCK_SH))"
    with kept(tmp_path) as house:
        server = house.start()
        client = server.client()
        (source,) = begun(client, 1)
        run_cell(client, f"/sandboxes/{source}", KEEPS_FILES)
        made = client.post(f"/sandboxes/{source}/fork", json={"count": 2}).json()["forks"]
        one, two = (f"/sandboxes/{each['sandbox']['id']}" for each in made)
        house.kill(server)
        client = house.start().client()
        for each in (one, two):
            assert run_cell(client, each, LOCKS.format(which=which))["verdict"] == "ok"
        before = run_cell(client, two, look)["stdout"]
        assert before.startswith("[")  # the control: it has the file, and tried
        run_cell(client, two, "locked(fcntl.LOCK_UN)")
        assert run_cell(client, one, "locked(fcntl.LOCK_EX)")["verdict"] == "ok"
        assert run_cell(client, two, look)["stdout"] == before


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.3])
def test_killed_in_the_middle_of_a_fork_the_source_goes_on(tmp_path: Path, delay_s: float) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        (source,) = begun(server.client(), 1)
        path = f"/sandboxes/{source}"
        run_cell(server.client(), path, "import os; big = os.urandom(150 << 20)")
        begin = threading.Event()

        def fork() -> None:
            with contextlib.suppress(httpx.HTTPError):
                client = server.client()
                begin.set()
                client.post(f"{path}/fork", json={"count": 3})

        thread = threading.Thread(target=fork)
        thread.start()
        begin.wait()
        time.sleep(delay_s)  # the moment varies; any is good
        house.kill(server)
        thread.join()
        client = house.start().client()
        for _ in range(2):
            assert run_cell(client, path, "print(x, len(big))")["stdout"] == "0 157286400\n"


def are_paused(client: httpx.Client, *sandboxes: str) -> bool:
    """Whether exactly these are listed as paused."""
    listed = client.get("/sandboxes", params={"state": "paused", "limit": 200}).json()
    return {each["id"] for each in listed["sandboxes"]} == set(sandboxes)


def frozen_groups(keeper: int) -> list[Path]:
    """Return the directories of a keeper's sandboxes that were ever paused."""
    place = hierarchies.discover().freezing
    return [] if place is None else list(place.base.glob(f"cellwall.*-{keeper}-*/frozen*"))


def test_a_context_that_heeds_no_interrupt_is_ended(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        (sandbox,) = begun(server.client(), 1)
        code = "import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass"
        with at_work(server, sandbox, code):
            house.kill(server)
        value = run_cell(house.start().client(), f"/sandboxes/{sandbox}", "print('again')")
        assert value["stdout"] == "again\n"
        assert "in a new one" in json.dumps(value)


@contextlib.contextmanager
def at_work(server: Server, sandbox: str, code: str) -> Iterator[None]:
    """Run a cell meanwhile; what comes first is a file, which says that it runs."""

    def work() -> None:
        with contextlib.suppress(httpx.HTTPError):
            run_cell(server.client(), f"/sandboxes/{sandbox}", f"open('on', 'w').close()\n{code}")

    thread = threading.Thread(target=work)
    thread.start()
    client, path = server.client(), f"/sandboxes/{sandbox}/files"
    wait_until(lambda: client.get(path, params={"path": "on"}).status_code == 200, "it runs")
    yield
    thread.join()


def test_keeper_that_is_killed_takes_every_sandbox_with_it(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        begun(server.client(), 3)
        inside = descendants(server.process.pid)
        house.kill(server)
        assert sum(map(is_alive, inside)) > 3
        os.kill(keeper_of(house), signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: not any(map(is_alive, inside)), "all are gone")
        assert time.monotonic() - began < 5


def test_server_whose_keeper_was_killed_says_so(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        (sandbox,) = begun(server.client(), 1)
        os.kill(keeper_of(house), signal.SIGKILL)
        client = server.client()
        path = f"/sandboxes/{sandbox}"
        wait_until(lambda: client.get(path).json()["status"] == "stopped", "it has ended")
        wait_until(lambda: client.post("/sandboxes", json={}).status_code == 503, "it says so")
        assert "session keeper" in client.post("/sandboxes", json={}).json()["error"]["message"]


def test_code_inside_has_no_descriptor_more(tmp_path: Path) -> None:
    """The control: a sandbox of a server that keeps none, which has no standby line."""
    code = "import os, subprocess\nprint(os.listdir('/proc/self/fd'))\n"
    code += "print(subprocess.getoutput('ls -l /proc/self/fd /proc/1/fd | wc -l'))"
    said = []
    for name, is_kept in (("with", True), ("without", False)):
        (tmp_path / name).mkdir()
        with kept(tmp_path / name, keep_sessions=is_kept) as house:
            client = house.start().client()
            said.append(run_cell(client, f"/sandboxes/{new_sandbox(client)}", code)["stdout"])
    assert said[0] == said[1] != ""


def test_sweep_of_another_engine_leaves_them_alone(tmp_path: Path) -> None:
    async def sweep() -> None:
        engine = Engine(tmp_path / "other")
        await engine.sweep()
        await engine.aclose()

    with kept(tmp_path) as house:
        server = house.start()
        sandboxes = begun(server.client(), 2)
        house.kill(server)
        asyncio.run(sweep())
        check_all(house.start().client(), sandboxes)


@pytest.mark.parametrize(
    ("field", "value"), [("protocol", 0), ("posture", "0" * 64), ("policy", "0" * 64)]
)
def test_one_of_another_version_is_destroyed_and_says_so(
    tmp_path: Path, field: str, value: object
) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        other, same = begun(server.client(), 2)
        house.kill(server)
        change_record(house, other, **{field: lambda _: value})
        client = house.start().client()
        found = client.get(f"/sandboxes/{other}").json()
        assert found["status"] == "stopped"
        assert found["ended_because"].startswith("upgraded")
        assert client.post(f"/sandboxes/{other}/execute", json={"code": "1"}).status_code == 410
        assert client.get(f"/sandboxes/{same}").json()["status"] == "running"


def test_one_that_was_never_written_down_is_destroyed(tmp_path: Path) -> None:
    """Its caller never had its id: killed after it was made and before it was stored."""
    with kept(tmp_path) as house:
        server = house.start(kill="before:PutSandbox")
        with contextlib.suppress(httpx.HTTPError):
            server.client().post("/sandboxes", json={})
        server.process.wait()
        server = house.start()
        assert server.client().get("/sandboxes").json()["sandboxes"] == []
        logged(server, lambda each: "its creation had not been written down" in each["event"])


def test_deleted_ones_stay_deleted_and_nothing_is_left(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        sandboxes = begun(server.client(), 3)
        house.kill(server)
        server = house.start()
        client = server.client()
        for sandbox in sandboxes:
            assert client.delete(f"/sandboxes/{sandbox}").status_code == 200
        keeper = keeper_of(house)
        assert server.stop() == 0
        wait_until(lambda: not is_alive(keeper), "the keeper ends with its last sandbox")
        assert control_groups(keeper) == set()


def test_network_policy_and_contexts_are_as_before(tmp_path: Path) -> None:
    """The proxy that serves it is another process; what it refuses is the same."""
    with kept(tmp_path) as house:
        server = house.start()
        client = server.client()
        policy = {"allow": ["*.a.example"], "deny": ["refused.a.example"]}
        path = f"/sandboxes/{new_sandbox(client, network=policy)}"
        client.post(f"{path}/contexts", json={"name": "second", "language": "python"})
        run_cell(client, path, "y = 5", context="second")
        before = (client.get(path).json()["network"], run_cell(client, path, REFUSED)["stdout"])
        assert before[1] == "403\n502\n", before
        house.kill(server)
        client = house.start().client()
        after = (client.get(path).json()["network"], run_cell(client, path, REFUSED)["stdout"])
        assert after == before
        assert run_cell(client, path, "print(y)", context="second")["stdout"] == "5\n"
        assert client.put(f"{path}/network", json={"mode": "none"}).status_code == 200


REFUSED = """
import http.client
line = http.client.HTTPConnection('127.0.0.1', 3128, timeout=10)
line.request('GET', 'http://refused.a.example/')
print(line.getresponse().status)
line = http.client.HTTPConnection('127.0.0.1', 3128, timeout=10)
line.request('GET', 'http://allowed.a.example/')  # nothing has the name, which is another status
print(line.getresponse().status)
"""
