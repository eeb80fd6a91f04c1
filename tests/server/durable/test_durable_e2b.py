"""What the E2B door knows of deadlines and of paused sandboxes is known to the next server, too."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox, SandboxState

from kit.server.crashes import House, house
from kit.server.e2b_doors import SETTINGS, E2BServer, created
from kit.server.kept_house import kept
from kit.servers import Server
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(150)]


def _door(server: Server) -> E2BServer:
    assert server.process.stdout is not None
    line = server.process.stdout.readline().strip()
    assert line.startswith("door e2b on http"), line
    return E2BServer(server, line.removeprefix("door e2b on "))


def _state(client: httpx.Client, sandbox: str) -> str:
    return str(client.get(f"/sandboxes/{sandbox}").json()["state"])


def _pausing(client: httpx.Client) -> str:
    """Make a sandbox that is paused after a second."""
    return created(client, autoPause=True, timeout=1)["sandboxID"]


def _wait_looked(client: httpx.Client) -> None:
    """Wait until all that have reached their deadline before are looked at, and paused."""
    last = _pausing(client)
    wait_until(lambda: _state(client, last) == "paused", "a later one is paused")


def test_one_that_was_paused_and_resumed_runs_on_after_a_restart(tmp_path: Path) -> None:
    """Resumed by another door, which gives it no new deadline."""
    with kept(tmp_path) as house:
        house.more = SETTINGS
        server = house.start()
        with contextlib.closing(_door(server)) as door:
            client = door.client()
            resumed, due = _pausing(client), created(client, autoPause=True, timeout=8)["sandboxID"]
            wait_until(lambda: _state(client, resumed) == "paused", "it is paused")
            assert server.client().post(f"/sandboxes/{resumed}/resume").status_code == 200
            _wait_looked(client)
            assert _state(client, resumed) == "running"
            house.kill(server)
        with contextlib.closing(_door(house.start())) as door:
            client = door.client()
            _wait_looked(client)
            assert _state(client, resumed) == "running"
            wait_until(lambda: _state(client, due) == "paused", "the other one is")  # the control
            later = client.post(f"/sandboxes/{resumed}/timeout", json={"timeout": 1})
            assert later.status_code == 204
            wait_until(lambda: _state(client, resumed) == "paused", "its next deadline holds")


@pytest.mark.parametrize("keeps_memory", [True, False])
def test_paused_one_is_connected_to_after_the_server_was_killed(
    tmp_path: Path, keeps_memory: bool
) -> None:
    """The unmodified SDK; with its memory, once the operator has paused ones hibernated."""
    with house(tmp_path, stop_s=1) as made:
        made.more = SETTINGS.replace("[engine]", "[engine]\nhibernate_s = 1")
        server = made.start()
        with contextlib.closing(_door(server)) as door:
            sandbox = Sandbox.create(timeout=300, **door.sdk())
            sandbox.files.write("note.txt", "kept")
            sandbox.commands.run("echo more >> note.txt")
            assert sandbox.pause(keep_memory=keeps_memory)
            asleep = partial(_is_hibernated, server, sandbox.sandbox_id)
            wait_until(asleep, "it is hibernated")
            made.kill(server)
        with contextlib.closing(_door(made.start())) as door:
            again = Sandbox.connect(sandbox.sandbox_id, **door.sdk())
            assert again.get_info().state == SandboxState.RUNNING
            assert again.files.read("note.txt") == "keptmore\n"
            assert again.commands.run("cat note.txt").stdout == "keptmore\n"
            assert again.kill()
            assert not _images(made)


def test_deadline_of_a_client_hibernates_for_the_next_server(tmp_path: Path) -> None:
    with house(tmp_path, stop_s=1) as made:
        made.more = SETTINGS
        server = made.start()
        with contextlib.closing(_door(server)) as door:
            client = door.client()
            name = created(client, autoPause=True, autoPauseMemory=False, timeout=1)["sandboxID"]
            wait_until(partial(_is_hibernated, server, name), "it is hibernated")
            made.kill(server)
        with contextlib.closing(_door(made.start())) as door:
            client = door.client()
            assert _state(client, name) == "paused"
            again = Sandbox.connect(name, timeout=120, **door.sdk())
            assert again.commands.run("echo there").stdout == "there\n"


def _is_hibernated(server: Server, sandbox: str) -> bool:
    found = server.client().get(f"/sandboxes/{sandbox}").json()
    return bool(found["status"] == "hibernated")


def _images(made: House) -> list[str]:
    place = made.folder / "state" / "snapshots"
    return [each.name for each in place.iterdir() if not each.name.startswith(".")]
