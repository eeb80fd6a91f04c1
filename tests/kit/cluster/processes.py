"""Nodes and gateways in processes of their own, with an authority of their own.

All on loopback, or each on a machine of `machines`; gateways listen at a unix socket then, which a
client reaches from everywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cellwall.cluster.certificates import Files, issue_gateway, issue_node, make_authority
from cellwall.model.ids import node_of
from kit.cluster.machines import Machines
from kit.servers import ADMIN, ALICE, configuration, descendants, keyless, state_of
from kit.waiting import is_alive, wait_until

_HOST = "127.0.0.1"


@dataclass
class Process:
    """One process of a cluster, which has said where it listens."""

    popen: subprocess.Popen[str]
    said: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.said.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it, and wait until it has ended with everything below it."""
        below = descendants(self.popen.pid)
        self.popen.kill()
        self.popen.wait()
        wait_until(lambda: not any(map(is_alive, below)), "the end of what was below it")
        if self.popen.stdout is not None:
            self.popen.stdout.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it as an operator would; return its exit status. A node drains at SIGTERM."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        if self.popen.stdout is not None:
            self.popen.stdout.close()
        return self.popen.wait()


@dataclass
class Cluster:
    """An authority, nodes and gateways."""

    folder: Path
    authority: Path
    nodes: dict[str, Process] = field(default_factory=dict)
    gateways: list[Process] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    machines: Machines | None = None
    """Where its processes are; None: all on this one."""
    detours: dict[str, dict[str, int]] = field(default_factory=dict)
    """Ports by which a gateway reaches nodes, where they are not the nodes' own."""
    directory: str = ""
    """Address of the gateways' directory; empty: each is alone."""
    directories: dict[str, str] = field(default_factory=dict)
    """Another address of it, for a gateway."""
    environs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables for single processes, by their names."""
    tiers: str = ""
    """Sections of the gateways' settings and the nodes'."""
    _clients: list[httpx.Client] = field(default_factory=list)

    def start_node(
        self,
        name: str,
        fence_s: float = 10.0,
        more: str = "",
        drain_s: float = 3600.0,
        **server: object,
    ) -> Process:
        """Start a node, or start it again at its port; `server`: settings of `[server]`."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        files = self._files(name)
        text = keyless(
            f"{self.tiers}\n{more}\n"
            f'[node]\nauthority = "{self.authority}"\ncertificate = "{files.certificate}"\n'
            f'key = "{files.key}"\nfence_s = {fence_s}\ndrain_s = {drain_s}',
            host=self._host(name),
            port=self.ports.setdefault(name, _unused_port()),  # the same after a fence
            **server,
        )
        env = {**self._environ(name), "CELLWALL_STATE_DIR": str(state_of(folder))}
        made = _started(folder, "node", text, env, self._entering(name))
        self.nodes[name] = made
        return made

    def start_gateway(
        self,
        fence_s: float = 10.0,
        probe_s: float = 0.2,
        more: str = "",
        audit: str = "",
        place: int | None = None,
        **server: object,
    ) -> Process:
        """Start a gateway over all nodes; `place`: start that one again.

        `more` are sections of its settings, `server` those of `[server]`.
        """
        name = f"gate-{len(self.gateways) if place is None else place}"
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        files = self._gateway_files(name)
        ports = self.ports | self.detours.get(name, {})
        nodes = ", ".join(f'"{self._host(each)}:{port}"' for each, port in ports.items())
        where: dict[str, object] = {"port": 0}
        if "port" in server:
            where = {"host": self._host(name), "allow_plain": True}
        elif self.machines is not None:
            where = {"unix": str(folder / "socket")}
        directory = self.directories.get(name, self.directory)
        text = configuration(
            f'{more}\n[gateway]\nnodes = [{nodes}]\nauthority = "{self.authority}"\n'
            f'certificate = "{files.certificate}"\nkey = "{files.key}"\n'
            f'fence_s = {fence_s}\nprobe_s = {probe_s}\naudit = "{audit}"\n'
            f'directory = "{directory}"\nname = "{name}"\n{self.tiers}',
            **where,
            **server,
        )
        made = _started(folder, "gateway", text, self._environ(name), self._entering(name))
        if place is None:
            self.gateways.append(made)
        else:
            self.gateways[place] = made
        return made

    def restart_gateway(self, number: int) -> None:
        """Stop a gateway as an operator would, if it was not killed; start it again at its port."""
        before = self.gateways[number]
        if before.popen.poll() is None:
            assert before.stop() == 0
        folder = before.log.parent
        text = (folder / "cellwall.toml").read_text(encoding="utf-8")
        text = re.sub(r"^port = \d+$", f"port = {before.port}", text, flags=re.MULTILINE)
        entering, environ = self._entering(folder.name), self._environ(folder.name)
        self.gateways[number] = _started(folder, "gateway", text, environ, entering)

    def client(self, gateway: int = 0, key: str | None = ALICE) -> httpx.Client:
        """Return a client of a gateway; it is closed with the cluster."""
        headers = {} if key is None else {"x-api-key": key}
        if self.machines is None:
            base, transport = f"http://{_HOST}:{self.gateways[gateway].port}", None
        else:
            path = str(self.folder / f"gate-{gateway}" / "socket")
            base, transport = f"http://{_HOST}", httpx.HTTPTransport(uds=path)
        made = httpx.Client(base_url=base, headers=headers, timeout=60, transport=transport)
        self._clients.append(made)
        return made

    def address(self, gateway: int = 0) -> str:
        """Return a gateway's address as the SDK takes it."""
        if self.machines is None:
            return f"http://{_HOST}:{self.gateways[gateway].port}"
        return f"unix:{self.folder / f'gate-{gateway}' / 'socket'}"

    def server_of(self, name: str) -> int:
        """Return the pid of the server below a node's guard."""
        guard = self.nodes[name].popen.pid
        text = Path(f"/proc/{guard}/task/{guard}/children").read_text(encoding="ascii")
        (server,) = map(int, text.split())
        return server

    def name_of(self, node: str) -> str:
        """Return the name that a node has now."""
        shown = self.client(key=ADMIN).get("/nodes").json()["nodes"]
        end = f":{self.ports[node]}"
        return next(str(each["name"]) for each in shown if each.get("address", "").endswith(end))

    def states(self, gateway: int = 0) -> dict[str, str]:
        """Return the state of each node by its name, as a gateway has it."""
        answer = self.client(gateway, ADMIN).get("/nodes").json()["nodes"]
        return {each["name"] or each["address"]: each["state"] for each in answer}

    def wait_ready(self, count: int, gateway: int = 0) -> None:
        """Wait until a gateway has so many ready nodes."""
        for _ in range(4):  # on a busy machine a start takes longer than any other fact
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self._has_ready(count, gateway), f"{count} ready nodes")
                return
        assert self._has_ready(count, gateway), self.states(gateway)

    def _has_ready(self, count: int, gateway: int) -> bool:
        return list(self.states(gateway).values()).count("ready") == count

    def stop(self) -> None:
        """Stop everything."""
        for client in self._clients:
            client.close()
        for each in (*self.gateways, *self.nodes.values()):
            each.stop(signal.SIGINT)

    def _gateway_files(self, name: str) -> Files:
        folder = self.folder / "authority"
        found = Files(folder / f"{name}.pem", folder / f"{name}.key")
        return found if found.certificate.exists() else issue_gateway(folder, name)

    def _files(self, name: str) -> Files:
        folder = self.folder / "authority"
        if name in self.ports:
            return Files(folder / f"{name}.pem", folder / f"{name}.key")
        return issue_node(folder, name, (self._host(name),))

    def _host(self, name: str) -> str:
        return _HOST if self.machines is None else self.machines.of(name).address

    def _environ(self, name: str) -> dict[str, str]:
        return {**os.environ, **self.environs.get(name, {})}

    def _entering(self, name: str) -> list[str]:
        return [] if self.machines is None else self.machines.of(name).entering()


def session_on(client: httpx.Client, name: str) -> str:
    """Return the path of a session that lives on the node of that name."""
    while True:
        made = client.post("/sandboxes", json={}).json()["id"]
        if node_of(made) == name:
            return f"/sandboxes/{made}"
        client.delete(f"/sandboxes/{made}")


def _started(
    folder: Path, command: str, text: str, env: dict[str, str], before: Sequence[str] = ()
) -> Process:
    path = folder / "cellwall.toml"
    path.write_text(text, encoding="utf-8")
    log = folder / "log"
    argv = [*before, sys.executable, "-m", "cellwall.apps.cli.main", command, "--config", str(path)]
    env.pop("CELLWALL_API_KEY", None)
    with log.open("a", encoding="utf-8") as stderr:
        popen = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True)
    assert popen.stdout is not None
    for line in popen.stdout:
        if "listening on " in line:
            return Process(popen, line.strip(), log)
    popen.wait()
    raise AssertionError(f"{command} did not start: {log.read_text(encoding='utf-8')}")


@contextlib.contextmanager
def cluster(
    nodes: int = 2,
    gateways: int = 1,
    machines: Machines | None = None,
    at_gateway: Mapping[str, object] | None = None,
    directory: str = "",
    tiers: str = "",
    drain_s: float = 3600.0,
    at_node: Mapping[str, object] | None = None,
    more: str = "",
    **choices: float,
) -> Iterator[Cluster]:
    """Run a cluster for the length of a block, on `machines` of its own if there are some.

    `at_gateway`, `at_node`: settings of `[server]`; `more`: sections of the nodes', `tiers`: of all
    settings.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        authority = make_authority(folder / "authority").certificate
        made = Cluster(folder, authority, machines=machines, directory=directory, tiers=tiers)
        try:
            for number in range(nodes):
                fence_s = choices.get("fence_s", 10.0)
                own = dict[str, Any](at_node or {})
                made.start_node(f"node-{number}", fence_s, more, drain_s, **own)
            for _ in range(gateways):
                fence_s, probe_s = choices.get("fence_s", 10.0), choices.get("probe_s", 0.2)
                made.start_gateway(fence_s, probe_s, **dict[str, Any](at_gateway or {}))
            for number in range(gateways):
                made.wait_ready(nodes, number)
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unused_port() -> int:
    """Return a port of loopback that no process has now."""
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        return int(sock.getsockname()[1])
