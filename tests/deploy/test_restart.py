"""`systemctl restart` with the drop-in keeps sessions, under a real systemd (`kit.deploy.beside`).

Slow and by hand: Debian 12's systemd is too old for the drop-in, and a newer one is unpacked from
what CELLWALL_TEST_SYSTEMD names. The service is deploy/cellwall.service with other paths and port.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kit.deploy.beside import Beside, beside
from kit.places import ROOT
from kit.servers import ALICE, configuration, new_sandbox, run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(400)]
DROP_IN = "/etc/systemd/system/cellwall.service.d/keep-sessions.conf"
KILL = ("systemctl", "kill", "--signal=KILL")
ONE_USE = httpx.Limits(max_keepalive_connections=0)
"""A server that is killed leaves no connection to be used again."""
RESTART = ("systemctl", "restart", "cellwall")


class Service:
    """The service in a systemd of its own."""

    def __init__(self, manager: Beside, port: int) -> None:
        self.manager = manager
        headers = {"X-API-Key": ALICE, "Accept": "application/json"}
        base = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=base, headers=headers, timeout=120, limits=ONE_USE)

    def do(self, *words: str) -> None:
        """Run a command in its machine, and wait until the service answers again."""
        before = self.main_pid()
        self.manager.run(*words)
        wait_until(lambda: self.main_pid() not in {"0", before}, "there is another process")
        wait_until(self._answers, "it answers")

    def main_pid(self) -> str:
        said = self.manager.run("systemctl", "show", "--property=MainPID", "--value", "cellwall")
        return said.strip()

    def _answers(self) -> bool:
        try:
            return self.client.get("/health").status_code == 200
        except httpx.HTTPError:
            return False


def _unit(port: int) -> str:
    text = (ROOT / "deploy" / "cellwall.service").read_text(encoding="utf-8")
    program = Path(sys.executable).with_name("cellwall")
    return (
        text.replace("/opt/cellwall/bin/cellwall serve", f"{program} serve --port {port}")
        .replace("/var/lib/cellwall", "/var/lib/cellwall-beside")
        .replace("StateDirectory=cellwall", "StateDirectory=cellwall-beside")
    )


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with beside() as manager:
        home = "--home-dir=/var/lib/cellwall-beside"
        manager.run("useradd", "--system", home, "--shell=/usr/sbin/nologin", "cellwall")
        manager.write("/etc/systemd/system/cellwall.service", _unit(port))
        manager.write("/etc/cellwall/cellwall.toml", configuration(warm=[]))
        manager.write(DROP_IN, (ROOT / "deploy/cellwall-keep-sessions.conf").read_text())
        said = manager.run("systemd-analyze", "verify", "/etc/systemd/system/cellwall.service")
        assert said == ""
        manager.run("systemctl", "daemon-reload")
        made = Service(manager, port)
        made.do("systemctl", "start", "cellwall")
        yield made
        made.client.close()


def test_restarts_keep_sessions_and_a_kill_of_all_does_not(service: Service) -> None:
    client = service.client
    made = [new_sandbox(client) for _ in range(4)]
    for number, each in enumerate(made):
        run_cell(client, f"/sandboxes/{each}", f"x = {number}; n = 0; open('f', 'w').write('f')")
    assert client.post(f"/sandboxes/{made[-1]}/pause").json()["status"] == "paused"
    ways = (RESTART, (*KILL, "--kill-whom=main", "cellwall"), RESTART)
    for turn, way in enumerate(ways, 1):
        service.do(*way)
        for number, each in enumerate(made):
            said = run_cell(client, f"/sandboxes/{each}", "n += 1; print(x, n, open('f').read())")
            assert said["stdout"] == f"{number} {turn} f\n"
    service.do(*KILL, "--kill-whom=all", "cellwall")
    for each in made:
        assert client.get(f"/sandboxes/{each}").json()["status"] == "stopped"


def test_without_the_drop_in_a_restart_ends_them(service: Service) -> None:
    """The control."""
    service.manager.run("rm", DROP_IN)
    service.manager.run("systemctl", "daemon-reload")
    service.do(*RESTART)
    made = new_sandbox(service.client)
    service.do(*RESTART)
    assert service.client.get(f"/sandboxes/{made}").json()["status"] == "stopped"
