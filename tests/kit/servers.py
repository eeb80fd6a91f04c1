"""A real `cellwall serve` in a process of its own, and clients of two tenants.

Started once for a test session by the fixture `server`; tests that need other settings start
their own. Traffic stays on loopback. What the server did to its host is read from outside, from
/proc.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from cellwall.engine.templates.store import state_dir
from cellwall.runtimes.jail.starting.bundle import bundle_in
from cellwall.server.auth.keys import digest_of
from kit.cluster.switch import is_fronted
from kit.server.mould import Forked, the_mould
from kit.waiting import wait_until

if TYPE_CHECKING:
    from kit.cluster.fronted import Fronted

ALICE = "alice-key-0123456789abcdef0123456789abcdef"
BOB = "bob-key-0123456789abcdef0123456789abcdef01"
MANAGER = "manager-key-0123456789abcdef0123456789abcdef"
ADMIN = "admin-key-0123456789abcdef0123456789abcdef"
_START_S = 40


def configuration(more: str = "", /, **server: object) -> str:
    """Return a TOML with two tenants' keys, an admin's, settings of the server, and `more`."""
    lines = [keyless(more, **server)]
    for key, tenant, scope in (
        (ALICE, "alice", "run"),
        (BOB, "bob", "run"),
        (MANAGER, "manager", "manage"),
        (ADMIN, "admin", "admin"),
    ):
        lines += ["[[keys]]", f'sha256 = "{digest_of(key)}"', f'tenant = "{tenant}"']
        lines += [f'scope = "{scope}"']
    return "\n".join(lines)


def keyless(more: str = "", /, **server: object) -> str:
    """Return a TOML with settings of the server and `more`, as a node has it."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in server.items()]
    return "\n".join([more, "[server]", *lines])


@dataclass
class Server:
    """One running server."""

    process: subprocess.Popen[str] | Forked | Fronted
    address: str
    lines: list[str]
    log: Path
    unix: str | None = None
    _clients: list[httpx.Client] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self, key: str | None = ALICE, **headers: str) -> httpx.Client:
        """Return a client; it is closed with the server."""
        if key is not None:
            headers["X-API-Key"] = key
        transport = None if self.unix is None else httpx.HTTPTransport(uds=self.unix)
        base = "http://localhost" if self.unix is not None else self.address
        made = httpx.Client(base_url=base, headers=headers, timeout=40, transport=transport)
        self._clients.append(made)
        return made

    def connect(self, window_bytes: int | None = None) -> socket.socket:
        """Return a plain connection, for what no client would send.

        With `window_bytes` the kernel keeps about that much for us while we do not read; by itself
        it makes room for megabytes, and as it likes.
        """
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(20)
        if window_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        sock.connect(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def raw(self, data: bytes) -> bytes:
        """Send bytes, return everything that comes until the server closes or is silent."""
        with self.connect() as sock:
            sock.settimeout(3)
            sock.sendall(data)
            return read_all(sock)

    def rss_bytes(self) -> int:
        """Return the server process's resident memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def peak_bytes(self) -> int:
        """Return the most resident memory the server process ever had."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        line = next(line for line in text.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def descriptors(self) -> int:
        """Return how many descriptors the server process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> int:
        """Stop it as an operator would; return its exit status."""
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait()


def descendants(pid: int) -> set[int]:
    """Return every process below `pid`, as the host sees them."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    found, queue = set(), [pid]
    while queue:
        parent = queue.pop()
        below = [each for each, its in parents.items() if its == parent]
        found.update(below)
        queue += below
    return found


def read_all(sock: socket.socket) -> bytes:
    """Read until the other side closes, or says nothing for the socket's timeout."""
    found = b""
    with contextlib.suppress(OSError):
        while data := sock.recv(65_536):
            found += data
    return found


def made_by(server: Server) -> int:
    """Return how many sandboxes the tenant has, and destroy them."""
    client = server.client()
    found = client.get("/sandboxes").json()["sandboxes"]
    for each in found:
        client.delete(f"/sandboxes/{each['id']}")
    return len([each for each in found if each["status"] == "running"])


def state_of(folder: Path) -> Path:
    """Return a state directory in `folder`, for one server.

    Its templates are everybody's, and the guest's code is there: compiling it takes half a second.
    """
    made = folder / "state"
    made.mkdir(mode=0o700, exist_ok=True)
    guest = _bundle()
    if not (made / "guest").exists():
        (made / "guest").mkdir()
        shutil.copy2(guest, made / "guest")
    templates = state_dir().absolute() / "templates"
    templates.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (made / "templates").symlink_to(templates)
    return made


@functools.cache
def _bundle() -> Path:
    return bundle_in(state_dir())


def start(
    folder: Path,
    *flags: str,
    environ: Mapping[str, str] | None = None,
    config: str | None = None,
    entry: tuple[str, ...] = ("-m", "cellwall.apps.cli.main"),
    is_forked: bool = True,
) -> Server:
    """Start a server and wait until it listens; `entry` is what the interpreter runs.

    A test of how the process itself begins, or of variables that its interpreter reads, has one
    that is not forked from a mould (`kit.server.mould`).
    """
    argv = [*entry, "serve", *flags]
    if config is not None:
        path = folder / "cellwall.toml"
        path.write_text(config, encoding="utf-8")
        argv += ["--config", str(path)]
    log = folder / "server.log"
    env = {k: v for k, v in os.environ.items() if k not in {"CELLWALL_API_KEY", "CELLWALL_CONFIG"}}
    env["CELLWALL_STATE_DIR"] = str(state_of(folder))
    env |= environ or {}
    if is_forked and entry[0] != "-c" and is_fronted():
        from kit.cluster.fronted import begin  # which makes certificates

        begun = begin(folder, entry, flags, config or "", env)
        return _server(begun.process, begun.lines, log)
    process: subprocess.Popen[str] | Forked
    with log.open("w", encoding="utf-8") as stderr:
        if is_forked and entry[0] != "-c":
            process = the_mould().start(argv, env, stderr.fileno())
        else:
            process = subprocess.Popen(
                [sys.executable, *argv], stdout=subprocess.PIPE, stderr=stderr, env=env, text=True
            )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("listening on "):
            return _server(process, lines, log)
    process.wait(_START_S)
    process.stdout.close()
    raise AssertionError(f"the server did not start: {lines} {log.read_text(encoding='utf-8')}")


def _server(
    process: subprocess.Popen[str] | Forked | Fronted, lines: list[str], log: Path
) -> Server:
    """Return a server whose last line says where it listens."""
    address = lines[-1].removeprefix("listening on ").strip()
    unix = address.removeprefix("unix:") if address.startswith("unix:") else None
    return Server(process, address, lines, log, unix)


@contextlib.contextmanager
def running(more: str = "", /, **server: object) -> Iterator[Server]:
    """Run a server of its own settings for the length of a block; `more` is TOML."""
    # Not a TemporaryDirectory: tests fork, and each child would remove it at its exit.
    folder = Path(tempfile.mkdtemp())
    try:
        made = start(folder, "--port", "0", config=configuration(more, **server))
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lines_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the objects of an NDJSON answer."""
    return [json.loads(line) for line in response.text.splitlines()]


def new_sandbox(client: httpx.Client, **body: object) -> str:
    """Create a sandbox and return its id."""
    answer = client.post("/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def run_cell(client: httpx.Client, sandbox: str, code: str, **body: object) -> dict[str, Any]:
    """Run code in the sandbox at that path; return what it did."""
    answer = client.post(
        f"{sandbox}/execute", json={"code": code, **body}, headers={"Accept": "application/json"}
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error object, checked for the one shape every error has."""
    body = response.json()
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert {"code", "message", "remedy", "request_id"} <= set(error)
    assert error["code"]
    assert error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    return error


# -- its log: a thread writes it, so the record of a request may come after its answer ------------

Record = dict[str, Any]


class Logging(Protocol):
    """A server, a node or a gateway of a test."""

    @property
    def log(self) -> Path: ...


def log_records(server: Logging) -> list[Record]:
    """Return what the log has so far; each line of it has to be JSON."""
    whole = server.log.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def logged(server: Logging, is_wanted: Callable[[Record], bool], what: str = "record") -> Record:
    """Return the first record that is wanted, as soon as the log has it."""
    found: list[Record] = []

    def has_come() -> bool:
        found[:] = [each for each in log_records(server) if is_wanted(each)][:1]
        return bool(found)

    wait_until(has_come, f"a {what} in {server.log}")
    return found[0]


def metrics_address(server: Logging) -> str:
    """Return the address of a server's metrics, which its log tells."""
    return str(logged(server, lambda each: each["event"] == "metrics", "metrics")["address"])
