"""A server in a process of its own and the leanest client for it, for the rows over HTTP.

Not the SDK: the load generator shares the machine with what it measures, so it does no more than
write a request and find the answer's length. Called by `http` and by the scripts in `bench/`.
Invariant: an answer other than 200 is an error of the row.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cellwall.apps.timings import TimingError
from cellwall.engine.templates.store import state_dir

_START_S = 60.0
_PARK_S = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send requests."""

    port: int
    key: str
    pid: int

    def rss_bytes(self) -> int:
        """Return the server process's resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise TimingError("the server has gone")

    def cpu_s(self) -> float:
        """Return the processor time of the server process's living threads, in seconds."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        spent = [(each / "schedstat").read_text(encoding="ascii").split()[0] for each in threads]
        return sum(map(int, spent)) / 1e9


@contextlib.asynccontextmanager
async def serving(
    settings: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> AsyncIterator[Target]:
    """Run `cellwall serve` for the length of a block, with a store of its own."""
    key = secrets.token_urlsafe(33)
    argv = [sys.executable, "-m", "cellwall.apps.cli.main", "serve", "--port", "0", *settings]
    with tempfile.TemporaryDirectory() as folder:
        templates = state_dir().absolute() / "templates"
        Path(folder, "templates").symlink_to(templates)  # noqa: ASYNC240 - before anything runs
        own = {"CELLWALL_API_KEY": key, "CELLWALL_STATE_DIR": folder}
        env = {**os.environ, **own, **(environ or {})}
        async with started(argv, env, "listening on ") as (process, line):
            yield Target(int(line.rpartition(":")[2]), key, process.pid)


@contextlib.asynccontextmanager
async def started(
    argv: Sequence[str], env: Mapping[str, str], ready: str
) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """Run a server for the length of a block; yield it and its line that begins with `ready`."""
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below, whatever happens
    process = _spawn(argv, env, log)
    try:
        yield (
            process,
            await asyncio.wait_for(asyncio.to_thread(_wait_line, process, ready, log), _START_S),
        )
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)
        if process.stdout is not None:
            process.stdout.close()
        log.close()


def _spawn(argv: Sequence[str], env: Mapping[str, str], log: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=log, text=True)


def _wait_line(process: subprocess.Popen[str], ready: str, log: IO[str]) -> str:
    if process.stdout is not None:
        for line in process.stdout:
            if line.startswith(ready):
                return line.strip()
    log.seek(0)
    raise TimingError(f"the server did not start: {log.read()[-600:]}")


class Client:
    """One keep-alive connection."""

    def __init__(self, target: Target, headers: Mapping[str, str] | None = None) -> None:
        """Not connected yet; `headers` go with each request."""
        self._target = target
        more = {"Accept": "application/json", **(headers or {})}
        self._more = "".join(f"{name}: {value}\r\n" for name, value in more.items())
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Client:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._target.port)
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up."""
        if self._writer is not None:
            self._writer.close()

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> None:
        """Write one request."""
        assert self._writer is not None
        data = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {self._target.key}\r\n"
            f"{self._more}Content-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )

    async def receive(self) -> Any:  # noqa: ANN401 - JSON
        """Return the answer to the oldest request."""
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        if not head.startswith(b"http/1.1 20"):
            raise TimingError(f"the server answered {head[9:12].decode()}: {body[:200].decode()}")
        return json.loads(body)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """Do one exchange."""
        self.send(method, path, body)
        return await self.receive()

    async def ask_lines(self, method: str, path: str, body: Mapping[str, Any]) -> list[Any]:
        """Do one exchange whose answer is a stream of JSON lines; return them when it is whole."""
        assert self._reader is not None
        self.send(method, path, body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 20") or b"chunked" not in head:
            raise TimingError(f"the server answered {head[:200].decode()}")
        text = bytearray()
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            text += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
        return [json.loads(line) for line in text.splitlines()]


async def wait_parked(client: Client) -> None:
    """Wait until the server's pool is full and nothing starts or ends. Raises TimingError."""
    until = time.monotonic() + _PARK_S
    while time.monotonic() < until:
        pool = (await client.ask("GET", "/stats"))["server"]["pool"]
        if pool["parked"] and not pool["starting"] and not pool["destroying"]:
            return
        await asyncio.sleep(0.002)
    raise TimingError("the pool did not fill")
