"""Tokens outlive their server as long as what they open does, and end with the key behind them."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import httpx
import pytest

from cellwall.apps.doors.e2b.tokens import Signed
from kit.server.e2b_doors import SETTINGS, E2BServer, created
from kit.server.kept_house import kept
from kit.servers import ADMIN, Server, new_sandbox, state_of
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(150)]
_SERVES = "cd /home/user && exec python3 -m http.server 8000"


def signed(client: httpx.Client, sandbox: str) -> list[str]:
    """Return paths with tokens, of a file and of the same file through a port."""
    path = f"/sandboxes/{sandbox}"
    client.put(f"{path}/files", params={"path": "f"}, content=b"here")
    client.post(f"{path}/commands", json={"command": _SERVES, "background": True})
    file = client.post(f"{path}/files/sign", json={"path": "f", "operation": "read"}).json()
    port = client.post(f"{path}/ports/sign", json={"port": 8000}).json()
    by_port = httpx.URL(port["url"].replace("/8000/", "/8000/f"))
    return [httpx.URL(file["url"]).raw_path.decode(), by_port.raw_path.decode()]


def read(server: Server, path: str) -> str:
    """Return what a stranger gets there."""
    return server.client(None).get(path).text


def opens(server: Server, path: str) -> bool:
    """Return whether a stranger gets the file there."""
    return read(server, path) == "here"


def status(server: Server, path: str) -> int:
    return server.client(None).get(path).status_code


@pytest.mark.parametrize("node", ["", "auto"])
def test_token_outlives_the_server_with_its_sandbox(tmp_path: Path, node: str) -> None:
    with kept(tmp_path, node=node) as house:
        server = house.start()
        client = server.client()
        sandbox = new_sandbox(client)
        paths = signed(client, sandbox)
        house.kill(server)
        server = house.start()
        assert read(server, paths[0]) == "here"
        wait_until(lambda: opens(server, paths[1]), "the server inside listens")
        server.client().delete(f"/sandboxes/{sandbox}")
        assert [status(server, each) for each in paths] == [410, 410]
        house.kill(server)
        # an operator ends every token: with the key, and with a restart
        key = state_of(tmp_path) / "tokens.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        key.unlink()
        server = house.start()
        assert [status(server, each) for each in paths] == [404, 404]


def test_token_ends_with_the_key_that_signed_it_also_after_a_restart(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        made = server.client(ADMIN).post("/keys", json={"tenant": "alice", "scope": "run"}).json()
        paths = signed(server.client(made["key"]), new_sandbox(server.client()))
        mine = new_sandbox(server.client())
        control = signed(server.client(), mine)[0]
        house.kill(server)
        server = house.start()
        assert opens(server, control)
        assert server.client(ADMIN).delete(f"/keys/{made['id']}").status_code == 200
        wait_until(lambda: status(server, paths[0]) == 404, "the key is refused")
        house.kill(server)
        server = house.start()
        assert [status(server, each) for each in paths] == [404, 404]
        assert opens(server, control)


def _door(server: Server) -> E2BServer:
    assert server.process.stdout is not None
    line = server.process.stdout.readline().strip()
    assert line.startswith("door e2b on http"), line
    return E2BServer(server, line.removeprefix("door e2b on "))


def test_e2b_s_tokens_outlive_the_server_with_their_sandbox(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        house.more = SETTINGS
        server = house.start()
        with contextlib.closing(_door(server)) as door:
            made = created(door.client())
            daemon = {"X-Access-Token": made["envdAccessToken"]}
            traffic = {"E2B-Traffic-Access-Token": made["trafficAccessToken"]}
            wrote = door.client(None, **daemon).post(
                "/files", params={"path": "f"}, files={"file": b"here"}
            )
            assert wrote.status_code == 200, wrote.text
            house.kill(server)
        signature = Signed("f", "read", "", None).signature(made["envdAccessToken"])
        with contextlib.closing(_door(house.start())) as door:
            asked = {"path": "f"}
            read = door.client(None, **daemon).get("/files", params=asked)
            assert read.content == b"here", read.text
            assert door.client(None, **traffic).get("/contexts").status_code == 200
            by_signature = door.client(None).get("/files", params={**asked, "signature": signature})
            assert by_signature.content == b"here", by_signature.text
            wrong = {"X-Access-Token": made["envdAccessToken"][:-1] + "x"}
            assert door.client(None, **wrong).get("/files", params=asked).status_code == 401
