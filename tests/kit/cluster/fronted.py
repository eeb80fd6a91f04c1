"""Servers of tests behind a gateway: a `cellwall node` with a `cellwall gateway` in front of it.

With `CELLWALL_TEST_GATEWAY=1` every server of `kit.servers` is one, from the same settings. Clients
speak with the gateway; pid, state directory and log are those of the node's server. What ends that
ends its guard and the gateway, too. The invariant: the tests themselves do not know.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cellwall.cluster.certificates import Files, issue_gateway, issue_node, make_authority
from kit.server.mould import Forked, the_mould
from kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOST = "127.0.0.1"
_FENCE_S = 60.0
"""A machine full of tests is no reason to end a node."""
_WORDS = {"--allow-plain": "allow_plain", "--keep-sessions": "keep_sessions"}
_NODES = frozenset({"store", "keep_sessions"})
"""What a flag of `serve` says to the node; the others are the gateway's."""
_STOP_S = 20


class Fronted:
    """The node's server, as `subprocess.Popen` shows a process of one's own."""

    def __init__(self, guard: Forked, server_pid: int, gateway: Forked) -> None:
        self._guard = guard
        self._gateway = gateway
        self._pidfd = os.pidfd_open(server_pid)
        weakref.finalize(self, os.close, self._pidfd)
        self.pid = server_pid
        self.returncode: int | None = None

    @property
    def stdout(self) -> IO[str] | None:
        """What the gateway says: where it listens."""
        return self._gateway.stdout

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        found = self._guard.poll()
        return None if found is None else self._ended(found)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, once it has."""
        return self._ended(self._guard.wait(timeout))

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _ended(self, status: int) -> int:
        """Return the server's status, which its guard ends with, and end the gateway."""
        if self.returncode is None:
            self._gateway.terminate()
            try:
                self._gateway.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._gateway.kill()
                self._gateway.wait()
            if self._guard.stdout is not None:
                self._guard.stdout.close()
            self.returncode = status - 256 if status > 128 else status
        return self.returncode


@dataclass(frozen=True)
class Begun:
    """What a start has to tell."""

    process: Fronted
    lines: list[str]
    """What the gateway said up to the line with its address."""


@dataclass(frozen=True)
class _Papers:
    """The certificates of this process's nodes and gateways."""

    authority: Path
    node: Files
    gateway: Files


def begin(
    folder: Path, entry: tuple[str, ...], flags: tuple[str, ...], text: str, env: Mapping[str, str]
) -> Begun:
    """Start a node and a gateway from a server's flags and settings, and wait for both.

    Raises AssertionError if either does not start.
    """
    chosen = _chosen(flags)
    path = folder / "cellwall.toml"
    path.write_text(text + _sections(port := _unused_port()), encoding="utf-8")
    for_node = {name: chosen.pop(name) for name in _NODES & chosen.keys()}
    for_node |= {"port": str(port), "host": _HOST}
    bare = {name: value for name, value in env.items() if name != "CELLWALL_API_KEY"}
    log = folder / "server.log"
    guard = _forked([*entry, "node", "--config", str(path)], bare | _variables(for_node), log)
    _listening(guard, "node listening on ", log)
    try:
        (server_pid,) = _children(guard.pid)
        front = folder / "gateway.log"
        argv = ["-m", "cellwall.apps.cli.main", "gateway", "--config", str(path)]
        gateway = _forked(argv, dict(env) | _variables(chosen), front)
        lines = _listening(gateway, "listening on ", front)
        process = Fronted(guard, server_pid, gateway)
        wait_until(lambda: ": ready, was " in front.read_text(encoding="utf-8"), "a ready node")
    except BaseException:
        guard.kill()
        guard.wait()
        raise
    return Begun(process, lines)


def _forked(argv: list[str], env: Mapping[str, str], log: Path) -> Forked:
    with log.open("w", encoding="utf-8") as stderr:
        return the_mould().start(argv, env, stderr.fileno())


def _listening(process: Forked, begins: str, log: Path) -> list[str]:
    """Return the lines that a process says up to the one that begins so."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(begins):
            return lines
    process.wait(_STOP_S)
    process.stdout.close()
    said = log.read_text(encoding="utf-8")
    raise AssertionError(f"it did not start behind a gateway: {lines} {said}")


def _chosen(flags: tuple[str, ...]) -> dict[str, str]:
    """Return the settings that flags of `serve` name."""
    found: dict[str, str] = {}
    left: Iterator[str] = iter(flags)
    for each in left:
        if each in _WORDS:
            found[_WORDS[each]] = "true"
        else:
            found[each.removeprefix("--").replace("-", "_")] = next(left)
    return found


def _variables(chosen: Mapping[str, str]) -> dict[str, str]:
    return {f"CELLWALL_{name.upper()}": value for name, value in chosen.items()}


def _sections(port: int) -> str:
    """Return the sections of a node at that port, and of a gateway in front of it."""
    papers = _papers()

    def of(name: str, files: Files, more: str) -> str:
        return (
            f'\n[{name}]\nauthority = "{papers.authority}"\ncertificate = "{files.certificate}"\n'
            f'key = "{files.key}"\nfence_s = {_FENCE_S}\n{more}'
        )

    front = f'nodes = ["{_HOST}:{port}"]\nprobe_s = 1.0\n'
    return of("node", papers.node, "drain_s = 0.0\n") + of("gateway", papers.gateway, front)


@functools.cache
def _papers() -> _Papers:
    folder, owner = Path(tempfile.mkdtemp()), os.getpid()
    atexit.register(_remove, folder, owner)
    authority = make_authority(folder / "authority").certificate
    node = issue_node(folder / "authority", "node", (_HOST,))
    return _Papers(authority, node, issue_gateway(folder / "authority", "gate"))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in what a test forks
        shutil.rmtree(folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    """Return the processes right below one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
                if int(text.rpartition(")")[2].split()[1]) == pid:
                    found.append(int(name))
    return found


def _unused_port() -> int:
    """Return a port of loopback that no process has now."""
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        return int(sock.getsockname()[1])
