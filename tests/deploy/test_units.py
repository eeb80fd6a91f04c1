"""deploy/cellwall-node.service and -gateway.service: walls that stand, with the process at work.

The node's are those of cellwall.service line by line, whose lines `test_service` takes out one by
one. Both are put up here: a program passes a gateway behind its unit's to a node behind its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cellwall.cluster.certificates import issue_gateway, issue_node, make_authority
from conftest import require_capability
from kit.deploy.units import directives, started
from kit.places import ROOT
from kit.servers import ALICE, configuration
from kit.unprivileged import OrdinaryUser
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

DEPLOY = ROOT / "deploy"
NODE, GATEWAY = DEPLOY / "cellwall-node.service", DEPLOY / "cellwall-gateway.service"
_WORST = {NODE: 35, GATEWAY: 22}
"""Tenths of `systemd-analyze security`; a gateway's are its sockets and its network."""


@pytest.mark.parametrize("unit", [NODE, GATEWAY], ids=lambda unit: unit.stem)
def test_systemd_takes_every_line(unit: Path, tmp_path: Path) -> None:
    require_capability("systemd-analyze", shutil.which("systemd-analyze") is not None, "systemd")
    copy = tmp_path / unit.name
    text = unit.read_text(encoding="utf-8")
    copy.write_text(text.replace("/opt/cellwall/bin/cellwall", "/bin/true"))
    argv = ["systemd-analyze", "verify", str(copy)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    limits = [f"--threshold={_WORST[unit]}", "--offline=true", "--no-pager"]
    argv = ["systemd-analyze", "security", *limits, str(copy)]
    judged = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout


def test_node_has_every_wall_of_the_server() -> None:
    server, node = directives(DEPLOY / "cellwall.service"), directives(NODE)
    differing = {name for name in {*server, *node} if server.get(name) != node.get(name)}
    assert differing == {"ExecStart", "Environment", "TimeoutStopSec"}
    assert int(node["TimeoutStopSec"]) > 3600


def test_gateway_stands_without_what_only_a_jail_needs() -> None:
    text = (DEPLOY / "cellwall.service").read_text(encoding="utf-8")
    missing_there = text.partition("# Not here:")[2]
    stands = directives(GATEWAY)
    for name in ("ProtectKernelTunables", "ProtectHostname", "RestrictNamespaces"):
        assert name in missing_there
        assert stands[name] == "yes"


@contextlib.contextmanager
def _behind_walls(unit: Path, user: OrdinaryUser, *words: str) -> Iterator[tuple[int, str]]:
    """Run a command of the user's behind a unit's walls; give its pid and where it listens."""
    with started(unit, user, *words) as process:
        try:
            assert process.stdout is not None
            line = next((each for each in process.stdout if "listening on " in each), "")
            address = line.partition("listening on ")[2].strip()
            assert address
            yield process.pid, address
        finally:
            process.send_signal(signal.SIGINT)


def _settings(user: OrdinaryUser, name: str, section: str, port: int) -> str:
    """Write settings of the user's, with a certificate that lies beside them; return the path."""
    home = user.home
    files = f'certificate = "{home}/{name}.pem"\nkey = "{home}/{name}.key"'
    text = configuration(f'{section}\nauthority = "{home}/authority.pem"\n{files}', port=port)
    path = home / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _certificates(user: OrdinaryUser, folder: Path) -> None:
    authority = make_authority(folder).certificate
    node, gateway = issue_node(folder, "node", ("127.0.0.1",)), issue_gateway(folder, "gateway")
    for path in (authority, *node, *gateway):
        shutil.copy(path, user.home)
    for path in user.home.iterdir():
        os.chown(path, user.uid, user.gid)


def test_program_passes_a_gateway_and_a_node_behind_their_units_walls(tmp_path: Path) -> None:
    require_capability("systemd-analyze", shutil.which("systemd-analyze") is not None, "systemd")
    with OrdinaryUser() as user:
        _certificates(user, tmp_path / "authority")
        with started(NODE, user, "templates", "build", "python") as built:
            assert built.wait(120) == 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        node = _settings(user, "node", "[node]", port)
        front = f'[gateway]\nnodes = ["127.0.0.1:{port}"]\nprobe_s = 0.2'
        gateway = _settings(user, "gateway", front, 0)
        for path in (node, gateway):
            os.chown(path, user.uid, user.gid)
        with (
            _behind_walls(NODE, user, "node", "--config", node) as (_, where),
            _behind_walls(GATEWAY, user, "gateway", "--config", gateway) as (pid, address),
        ):
            assert where.endswith(f":{port}")
            assert _said_through(address) == "42\n"
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            assert "CapEff:\t0000000000000000" in status
            assert "NoNewPrivs:\t1" in status


def _said_through(address: str) -> str:
    with httpx.Client(base_url=address, headers={"x-api-key": ALICE}, timeout=40) as client:
        wait_until(
            lambda: client.post("/execute", json={"code": "1"}).is_success, "the first probe"
        )
        return str(client.post("/execute", json={"code": "print(6 * 7)"}).json()["stdout"])
