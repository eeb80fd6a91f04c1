"""House: a head and nodes of Ray's in network namespaces of their own, joined by a bridge.

The process that makes it is in a fresh network namespace (`unshare --net`), which is the head's.
Each node has addresses, a state directory and processes of its own, so that it can be killed, cut
off, or stopped without the others. What it does to the host is bounded: all traffic stays in these
namespaces, which end with their processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HEAD = "10.211.0.1"
PORT = 6379
_BRIDGE = "fleet"
_START_S = 60.0
_STATE = "CELLWALL_STATE_DIR"
_RAY = str(Path(sys.executable).with_name("ray"))


def sh(*words: str, net: int | None = None) -> None:
    """Run a command of the host's, in the network namespace of process `net` if there is one."""
    # Not `ip netns exec`: it mounts /sys anew, and engines find no cgroups then.
    prefix = [] if net is None else ["nsenter", f"--net=/proc/{net}/ns/net"]
    subprocess.run([*prefix, *words], check=True, capture_output=True)


def processes_with(variable: str) -> set[int]:
    """Return the processes whose environment has `NAME=value`."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{name}/environ").read_bytes()
                if variable.encode() in text.split(b"\0"):
                    found.add(int(name))
    return found


def children() -> dict[int, list[int]]:
    """Return the children of each process."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                found.setdefault(parent, []).append(int(name))
    return found


def below(pid: int) -> set[int]:
    """Return every process below `pid`."""
    tree, found, queue = children(), set(), [pid]
    while queue:
        for each in tree.get(queue.pop(), ()):
            found.add(each)
            queue.append(each)
    return found


def born(pid: int) -> str:
    """When a process began, so that a number that is used again is another process; "" if gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Witness:
    """Notes every process below one, so that those that outlive it are found."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, str] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_over.wait(0.01):
            for pid in below(self._pid):
                began = born(pid)
                if began:
                    self._seen[pid] = began

    def alive(self) -> list[int]:
        """Return the processes that were below it and are there."""
        return [pid for pid, began in list(self._seen.items()) if born(pid) == began]

    @property
    def count(self) -> int:
        return len(self._seen)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


@dataclass
class Node:
    """One machine of the cluster."""

    number: int
    house: House
    holder: subprocess.Popen[bytes]
    ray: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"10.211.0.{10 + self.number}"

    @property
    def state(self) -> Path:
        return self.house.place / f"state{self.number}"

    def start(self) -> None:
        """Start Ray there, and wait until it has: two that start at once disturb each other."""
        before = self.house.started(self.number)
        self.ray = self.house.ray(
            f"--address={HEAD}:{PORT}",
            f"--node-ip-address={self.address}",
            '--resources={"cellwall": 1}',
            net=self.holder.pid,
            state=self.state,
        )
        _wait(lambda: self.house.started(self.number) > before, f"Ray on node {self.number}")

    def processes(self) -> set[int]:
        """Return the processes that were started there, sandboxes and what is below them too."""
        found = processes_with(f"{_STATE}={self.state}")
        for pid in tuple(found):
            found |= below(pid)
        return found - {os.getpid()}

    def actor(self) -> int:
        """Return the process of the node's engine."""
        found = self._named(b"ray::NodeActor")
        # A child of it that has not executed its own program yet looks the same.
        below_others = {each for pid in found for each in below(pid)}
        (pid,) = set(found) - below_others
        return pid

    def raylet(self) -> int:
        """Return the process of Ray's agent."""
        found = self._named(b"raylet/raylet")
        (pid,) = set(found) - {each for pid in found for each in below(pid)}
        return pid

    def _named(self, name: bytes) -> list[int]:
        found = []
        for pid in processes_with(f"{_STATE}={self.state}"):
            with contextlib.suppress(OSError):
                if name in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] and born(pid):
                    found.append(pid)
        return found

    def revive(self) -> None:
        """Start Ray again if it has ended: the head gives a machine up that was silent for long."""
        if not self._named(b"raylet/raylet"):
            self.kill_all()
            self.start()

    def kill_all(self) -> None:
        """Kill every process of it, as a loss of power does."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.ray is not None:
            self.ray.wait()
            self.ray = None

    def cut(self) -> None:
        """Take its link away."""
        sh("ip", "link", "set", f"n{self.number}", "down")

    def heal(self) -> None:
        sh("ip", "link", "set", f"n{self.number}", "up")

    def mute(self) -> None:
        """Drop what it sends; it hears everything."""
        self._rule("saddr")

    def deafen(self) -> None:
        """Drop what is sent to it; all hear it."""
        self._rule("daddr")

    def _rule(self, side: str) -> None:
        table = f"cut{self.number}"
        sh("nft", "add", "table", "bridge", table)
        hook = "{ type filter hook forward priority 0; }"
        sh("nft", "add", "chain", "bridge", table, "through", hook)
        # Between the node and the head's own address the bridge does not forward.
        for name, at in (("in", "input"), ("out", "output")):
            hook = f"{{ type filter hook {at} priority 0; }}"
            sh("nft", "add", "chain", "bridge", table, name, hook)
        for chain in ("through", "in", "out"):
            words = ("ip", side, self.address, "drop")
            sh("nft", "add", "rule", "bridge", table, chain, *words)

    def unmute(self) -> None:
        sh("nft", "delete", "table", "bridge", f"cut{self.number}")

    def stop(self) -> None:
        """End Ray there, and wait until nothing of it is left."""
        if self.ray is not None:
            self.kill_all()


@dataclass
class House:
    """The cluster."""

    place: Path
    token: Path
    has_token: bool = True
    nodes: list[Node] = field(default_factory=list)
    head: subprocess.Popen[bytes] | None = None

    def environment(self, state: Path) -> dict[str, str]:
        """Return the variables of a machine of the cluster."""
        found = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PYTEST_"))}
        found |= {
            _STATE: str(state),
            "RAY_AUTH_MODE": "token" if self.has_token else "disabled",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "CELLWALL_FAST": os.environ.get("CELLWALL_FAST", "unrehearsed"),
        }
        if self.has_token:
            found["RAY_AUTH_TOKEN_PATH"] = str(self.token)
        return found

    def ray(self, *words: str, state: Path, net: int | None = None) -> subprocess.Popen[bytes]:
        """Start a machine's Ray, in the foreground."""
        share_templates(state)
        prefix = [] if net is None else ["nsenter", f"--net=/proc/{net}/ns/net"]
        log = (self.place / f"{state.name}.log").open("ab")
        with log:
            return subprocess.Popen(
                [
                    *prefix,
                    *(_RAY, "start", "--block", "--disable-usage-stats", *words),
                    *("--num-cpus=2", f"--object-store-memory={80 << 20}"),
                ],
                env=self.environment(state),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def add(self) -> Node:
        """Add a machine, with Ray started."""
        number = len(self.nodes) + 1
        # It ends with this process, and so does its namespace.
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
        )
        node = Node(number, self, holder)
        self.nodes.append(node)
        mine = os.readlink("/proc/self/ns/net")
        _wait(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != mine, "a namespace")
        _wait(lambda: _is_sleep(holder.pid), "a namespace")
        sh("ip", "link", "add", f"n{number}", "type", "veth", "peer", "name", "eth0",
           "netns", str(holder.pid))  # fmt: skip
        sh("ip", "link", "set", f"n{number}", "master", _BRIDGE, "up")
        sh("ip", "address", "add", f"{node.address}/24", "dev", "eth0", net=holder.pid)
        sh("ip", "link", "set", "eth0", "up", net=holder.pid)
        sh("ip", "link", "set", "lo", "up", net=holder.pid)
        node.start()
        return node

    def open(self) -> None:
        """Start the head."""
        sh("ip", "link", "set", "lo", "up")
        sh("ip", "link", "add", _BRIDGE, "type", "bridge")
        sh("ip", "address", "add", f"{HEAD}/24", "dev", _BRIDGE)
        sh("ip", "link", "set", _BRIDGE, "up")
        self.start_head()

    def start_head(self) -> None:
        self.head = self.ray(
            *("--head", f"--port={PORT}", f"--node-ip-address={HEAD}"),
            *("--include-dashboard=false", f"--temp-dir={self.place / 'ray'}"),
            state=self.place / "state0",
        )
        _wait(lambda: self.started(0), "the head of Ray")

    def started(self, number: int) -> int:
        """Return how often Ray has started on a machine; 0 is the head."""
        return self._log(number).count("Ray runtime started")

    def _log(self, number: int) -> str:
        path = self.place / f"state{number}.log"
        return path.read_text() if path.exists() else ""

    def kill_head(self) -> None:
        """Kill the process that knows the cluster; there is no second one."""
        for pid in processes_with(f"{_STATE}={self.place / 'state0'}"):
            with contextlib.suppress(OSError):
                if b"gcs_server" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                    os.kill(pid, signal.SIGKILL)

    def logs(self) -> list[str]:
        """Return the end of what each machine's Ray said."""
        return [self._log(number)[-500:] for number in range(len(self.nodes) + 1)]

    def close(self) -> None:
        for node in self.nodes:
            node.stop()
            node.holder.kill()
            node.holder.wait()
        for pid in processes_with(f"{_STATE}={self.place / 'state0'}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.head is not None:
            self.head.wait()


def _is_sleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {_START_S} s: {what}"
        time.sleep(0.02)


def share_templates(state: Path) -> None:
    """Give a state directory the templates of this machine, which are only read."""
    state.mkdir(parents=True, exist_ok=True)
    built = Path(os.environ.get(_STATE, "/var/lib/cellwall")) / "templates"
    link = state / "templates"
    if not link.is_symlink():
        link.symlink_to(built)


@contextlib.contextmanager
def house(*, has_token: bool = True, nodes: int = 3) -> Iterator[House]:
    """Give a cluster with a head and nodes; nothing of it is left afterwards."""
    place = Path(tempfile.mkdtemp(prefix="fl"))  # short: sockets lie below it
    token = place / "token"
    token.write_text(os.urandom(32).hex())
    token.chmod(0o600)
    made = House(place, token, has_token)
    try:
        made.open()
        for _ in range(nodes):
            made.add()
        yield made
    finally:
        made.close()
        if not os.environ.get("FL_KEEP"):
            shutil.rmtree(place, ignore_errors=True)
