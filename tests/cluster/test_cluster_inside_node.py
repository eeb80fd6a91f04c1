"""What the root of a node's machine reaches and finds: no node, no directory, no gateway, no key.

Machines of their own on one switch: two nodes, two gateways, PostgreSQL, a client. What is tried
from a node is tried from where it has to work, too.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellwall.cluster.certificates import Files, issue_gateway, make_authority
from cellwall.server.auth.keys import digest_of
from conftest import Require
from kit.cluster.directories import ROLE, directory, name_of
from kit.cluster.machines import Machine, Machines, machines
from kit.cluster.processes import Cluster, cluster
from kit.places import ROOT
from kit.postgres_server import Postgres, another
from kit.servers import ADMIN, ALICE, descendants, run_cell

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240)]

PASSWORD = "directory-password-0123456789abcdef"
DIRECTORY_PORT = 5432
FRONT_PORT = 8080
METRICS_PORT = 9100
TOKEN = "metrics-token-0123456789abcdef"

_REACHES = """if True:
    import json, socket, sys
    from concurrent.futures import ThreadPoolExecutor
    def reaches(place):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1.5).close()
        except OSError:
            return False
        return True
    with ThreadPoolExecutor(8) as pool:
        print(json.dumps(list(pool.map(reaches, sys.argv[1:]))))
"""
_SPEAKS = """if True:
    import socket, ssl, sys
    host, port, authority, *files = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    if files:
        context.load_cert_chain(*files)
    try:
        with socket.create_connection((host, int(port)), 5) as plain:
            with context.wrap_socket(plain, server_hostname=host) as made:
                made.sendall(b"GET /node HTTP/1.1\\r\\nhost: x\\r\\ncellwall-look: 1\\r\\n\\r\\n")
                print(made.recv(12).decode())
    except OSError:  # ssl.SSLError is one
        print("refused")
"""
_ASKS = """if True:
    import sys, urllib.error, urllib.request
    method, url, key = sys.argv[1:]
    asked = urllib.request.Request(url, method=method, headers={"x-api-key": key} if key else {})
    try:
        print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@dataclass
class Place:
    """The cluster, its machines and its directory."""

    made: Cluster
    machines: Machines
    postgres: Postgres

    def of(self, name: str) -> Machine:
        return self.machines.of(name)

    def targets(self) -> dict[str, str]:
        """Return what a node has no business with, as host:port."""
        gate = self.of("gate-1").address
        return {
            "node": f"{self.of('node-1').address}:{self.made.ports['node-1']}",
            "directory": f"{self.of('database').address}:{DIRECTORY_PORT}",
            "front": f"{gate}:{FRONT_PORT}",
            "metrics": f"{gate}:{METRICS_PORT}",
        }

    def reaches(self, name: str) -> set[str]:
        """Return the targets to which a connection can be made from a machine."""
        targets = self.targets()
        found = json.loads(_said(self.of(name), _REACHES, *targets.values()))
        return {each for each, is_open in zip(targets, found, strict=True) if is_open}

    def speaks(self, name: str, files: Files | None) -> str:
        """Return how a node answers a caller with these files on a machine."""
        node, authority = self.of("node-1"), self.made.authority
        words = [] if files is None else [str(files.certificate), str(files.key)]
        port = self.made.ports["node-1"]
        return _said(self.of(name), _SPEAKS, node.address, str(port), str(authority), *words)


def _said(machine: Machine, code: str, *words: str) -> str:
    """Run a program on a machine; return what it printed."""
    argv = [*machine.entering(), sys.executable, "-c", code, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def place(require: Require, postgres: Postgres) -> Iterator[Place]:
    assert postgres.pid  # there is one; this module's own listens on a machine of its own
    for command, package in (("nsenter", "util-linux"), ("ip", "iproute2"), ("nft", "nftables")):
        require(command, shutil.which(command) is not None, f"apt-get install {package}")
    with machines() as made_machines:
        database = made_machines.of("database")
        with another(database.entering(), database.address) as own:
            name = name_of(directory(own))
            own.sql(f"ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'")
            url = f"postgresql://{ROLE}:{PASSWORD}@{database.address}:{DIRECTORY_PORT}/{name}"
            with cluster(2, 1, machines=made_machines, directory=url) as made:
                made.start_gateway(
                    port=FRONT_PORT,
                    metrics_host=made_machines.of("gate-1").address,
                    metrics_port=METRICS_PORT,
                    metrics_token_sha256=digest_of(TOKEN),
                )
                yield Place(made, made_machines, own)


# -- what can be reached -----------------------------------------------------------------------


def _load(machine: Machine, rules: str, **defined: object) -> None:
    """Load a file of deploy/ on a machine."""
    words = [word for name, text in defined.items() for word in ("--define", f"{name}={text}")]
    argv = [*machine.entering(), "nft", *words, "--file", str(ROOT / "deploy" / rules)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _set(found: Iterable[Machine]) -> str:
    return f"{{ {', '.join(each.address for each in found)} }}"


def test_behind_the_rules_of_deploy_a_node_reaches_no_other_machine(place: Place) -> None:
    everything = set(place.targets())
    assert place.reaches("node-0") == everything  # the control: nothing is in the way yet
    nodes = [place.of("node-0"), place.of("node-1")]
    gates = [place.of("gate-0"), place.of("gate-1")]
    try:
        for each, name in zip(nodes, ("node-0", "node-1"), strict=True):
            port = place.made.ports[name]
            _load(each, "gateways-only.nft", gateways=_set(gates), port=port)
        _load(place.of("database"), "gateways-only.nft", gateways=_set(gates), port=DIRECTORY_PORT)
        for each in gates:
            _load(each, "no-nodes.nft", nodes=_set(nodes))
        # Root on the node takes its own rules away.
        subprocess.run([*nodes[0].entering(), "nft", "flush", "ruleset"], check=True)
        assert place.reaches("node-0") == set()
        assert place.reaches("gate-0") == everything
        assert place.reaches("client") == {"front", "metrics"}
        for gateway in (0, 1):
            made = place.made.states(0)
            assert list(made.values()).count("ready") == 2, (gateway, made)
        told = place.made.client(0).post(
            "/execute", json={"code": "print(1)"}, headers={"idempotency-key": os.urandom(8).hex()}
        )
        assert told.json()["stdout"] == "1\n", told.text
    finally:
        for each in (*nodes, *gates, place.of("database")):
            subprocess.run([*each.entering(), "nft", "flush", "ruleset"], check=True)


def test_node_listens_at_one_port_and_calls_no_machine(place: Place) -> None:
    for name in ("node-0", "node-1"):
        argv = [*place.of(name).entering(), "ss", "--no-header", "--numeric", "--tcp", "--all"]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        lines = [line.split() for line in said.splitlines()]
        lines = [line for line in lines if line[0] in {"LISTEN", "ESTAB", "SYN-SENT"}]
        lines = [line for line in lines if not line[3].startswith("127.")]
        port = str(place.made.ports[name])
        assert {line[3].rpartition(":")[2] for line in lines} == {port}, said
        assert {line[0] for line in lines} == {"LISTEN", "ESTAB"}  # gateways call it


# -- what it can do with what it has -----------------------------------------------------------


def test_node_takes_no_caller_but_a_gateway_of_its_cluster(place: Place, tmp_path: Path) -> None:
    own = place.made.folder / "authority"
    make_authority(tmp_path / "other")
    foreign = issue_gateway(tmp_path / "other", "gate-0")
    expired = issue_gateway(own, "expired", days=0)
    node, gateway = (Files(own / f"{n}.pem", own / f"{n}.key") for n in ("node-0", "gate-0"))
    for files in (node, None, foreign, expired):
        assert place.speaks("node-0", files) in {"refused", ""}, files
    assert place.speaks("gate-0", gateway) == "HTTP/1.1 200"  # the control


def test_directory_lets_no_node_in(place: Place) -> None:
    database = place.of("database").address
    url = f"postgresql://{ROLE}@{database}:{DIRECTORY_PORT}/{name_of(place.made.directory)}"

    def asked(name: str, **environ: str) -> subprocess.CompletedProcess[str]:
        argv = [*place.of(name).entering(), str(place.postgres.bin / "psql"), url, "--no-password"]
        return subprocess.run(
            [*argv, "-tAc", "SELECT count(*) FROM directory.nodes"],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    assert "no password supplied" in asked("node-0").stderr
    assert "authentication failed" in asked("node-0", PGPASSWORD="guessed").stderr
    assert asked("gate-0", PGPASSWORD=PASSWORD).stdout.strip() == "2"  # the control


def test_gateway_obeys_no_node(place: Place) -> None:
    front = f"http://{place.of('gate-1').address}:{FRONT_PORT}"
    drain = f"{front}/nodes/{place.made.name_of('node-1')}/drain"
    for key in ("", digest_of(ADMIN)):
        assert _said(place.of("node-0"), _ASKS, "GET", f"{front}/nodes", key) == "401"
        assert _said(place.of("node-0"), _ASKS, "POST", drain, key) == "401"
    metrics = f"http://{place.of('gate-1').address}:{METRICS_PORT}/metrics"
    assert _said(place.of("node-0"), _ASKS, "GET", metrics, "") == "401"
    assert _said(place.of("client"), _ASKS, "GET", f"{front}/nodes", ADMIN) == "200"  # the control


# -- what it finds -----------------------------------------------------------------------------


def _body(path: Path) -> bytes:
    """Return the middle of a PEM file."""
    return path.read_bytes().splitlines()[1]


def _secrets(place: Place) -> dict[str, bytes]:
    """Return what must not be on a node."""
    folder = place.made.folder / "authority"
    found = {
        "a tenant's key": ALICE.encode(),
        "the operator's key": ADMIN.encode(),
        "a digest of a key": digest_of(ALICE).encode(),
        "the same in bytes": bytes.fromhex(digest_of(ALICE)),
        "the directory's password": PASSWORD.encode(),
        "the directory's address": f"{place.of('database').address}:".encode(),
        "another node's address": place.targets()["node"].encode(),
    }
    for name in ("authority", "gate-0", "node-1"):
        found[f"the private key of {name}"] = _body(folder / f"{name}.key")
        der = base64.b64decode("".join((folder / f"{name}.key").read_text().splitlines()[1:-1]))
        found[f"the same in bytes, of {name}"] = re.search(rb"\x04\x20(.{32})", der, re.DOTALL)[1]  # type: ignore[index]
    return found


def _pieces(folder: Path, pids: Iterable[int]) -> Iterator[bytes]:
    """Yield every file below a folder, and what processes have in memory that is theirs."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path.read_bytes()
    for pid in pids:
        yield from _memory(pid)


def _memory(pid: int) -> Iterator[bytes]:
    try:
        yield Path(f"/proc/{pid}/environ").read_bytes()
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in maps.splitlines():
                where, rights, *_ = line.split()
                begin, _, end = where.partition("-")
                if "w" in rights:
                    memory.seek(int(begin, 16))
                    yield memory.read(int(end, 16) - int(begin, 16))
    except OSError:  # it has ended
        return


def _found(place: Place, folder: str, pid: int) -> set[str]:
    """Return which secrets are in a folder, or in the memory of a process or one below it."""
    secrets = _secrets(place)
    return {
        name
        for piece in _pieces(place.made.folder / folder, (pid, *descendants(pid)))
        for name, secret in secrets.items()
        if secret in piece
    }


def test_nothing_of_others_is_in_the_files_and_the_memory_of_a_node(place: Place) -> None:
    made = place.made
    for key in (ALICE, ADMIN):
        for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
            client = made.client(0, key=None)
            for _ in range(6):
                told = client.post("/execute", json={"code": "print(1)"}, headers=headers)
                assert told.json()["stdout"] == "1\n", told.text
    session = f"/sandboxes/{made.client(0).post('/sandboxes', json={}).json()['id']}"
    run_cell(made.client(0), session, "x = 1")
    for name in ("node-0", "node-1"):
        own = {f"{what}{name}" for what in ("the private key of ", "the same in bytes, of ")}
        others = _found(place, name, made.nodes[name].popen.pid) - own
        if name == "node-1":
            others -= {"another node's address"}  # its own
        assert others == set(), name
    # The control: what a gateway has to know is found there.
    known = _found(place, "gate-0", made.gateways[0].popen.pid)
    assert {
        "a tenant's key",
        "a digest of a key",
        "the directory's password",
        "the directory's address",
        "another node's address",
    } <= known
    made.client(0).delete(session)
