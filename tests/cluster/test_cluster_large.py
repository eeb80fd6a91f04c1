"""What is large at a gateway: many open streams, and many bytes; its memory stays flat."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster.processes import Cluster, cluster
from kit.servers import ALICE, new_sandbox, run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = int(os.environ.get("CELLWALL_TEST_STREAMS", "2000"))
GIGABYTES = float(os.environ.get("CELLWALL_TEST_GIGABYTES", "10"))
_BODY_BYTES = 1 << 30
"""Largest body that a server passes on to a port."""
MOST_MIB = 45 + STREAMS * 0.045
"""Most that a gateway takes: each stream has a connection with TLS to its node, of which 25 KiB are
OpenSSL's and Python's `ssl`."""


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    more = {"most_connections_per_address": STREAMS + 100}
    tier = f"[tiers.default]\nconnections = {STREAMS + 100}\n"
    with cluster(1, probe_s=1.0, at_gateway=more, tiers=tier) as made:
        yield made


def _memory_mib(made: Cluster) -> float:
    """Return the memory that the gateway's process has now, without pages of files."""
    text = Path(f"/proc/{made.gateways[0].popen.pid}/status").read_text(encoding="ascii")
    return (
        sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")) / 1024
    )


async def _open(made: Cluster, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream and return it when its first line is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", made.gateways[0].port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {ALICE}\r\n"
        "accept: application/x-ndjson\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head + await reader.read(1000)
    assert b"begun" in await reader.readuntil(b"begun")
    return reader, writer


async def _streams(made: Cluster, path: str, release: str) -> float:
    opened = []
    for _ in range(0, STREAMS, 50):
        opened += await asyncio.gather(*(_open(made, path) for _ in range(50)))
    at_most = _memory_mib(made)
    client = made.client()
    assert client.get("/health").status_code == 200
    assert run_cell(client, release, "open('go', 'w').close(); print(1)")["stdout"] == "1\n"
    for reader, writer in opened:
        await reader.readuntil(b"ended")
        writer.close()
        await writer.wait_closed()
    return at_most


def test_many_streams_are_open_at_once(one: Cluster) -> None:
    client = one.client()
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    code = (
        "import os, time\nprint('begun', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.1)\nprint('ended', flush=True)"
    )
    begun = client.post(
        f"{sandbox}/commands", json={"argv": ["python", "-c", code], "background": True}
    ).json()
    path = f"{sandbox}/commands/{begun['id']}/events"
    memory = asyncio.run(_streams(one, path, sandbox))
    assert memory < MOST_MIB, memory
    client.delete(sandbox)


_SERVER = """
import http.server, threading
class Large(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        left, piece = int(self.path[1:]), bytes(1 << 20)
        self.send_response(200)
        self.send_header('content-length', str(left))
        self.end_headers()
        while left > 0:
            self.wfile.write(piece[:left]); left -= len(piece)
    def do_POST(self):
        size = left = int(self.headers['content-length'])
        while left > 0: left -= len(self.rfile.read(min(left, 1 << 20)))
        self.send_response(200); self.end_headers(); self.wfile.write(str(size).encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Large)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""


def test_many_bytes_go_through_in_flat_memory(one: Cluster) -> None:
    client = one.client()
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    run_cell(client, sandbox, _SERVER)
    inside, size = f"{sandbox}/ports/8000", int(GIGABYTES * 500e6)
    wait_until(lambda: client.get(f"{inside}/1").status_code == 200, "it listens")
    before, most = _memory_mib(one), 0.0
    with client.stream("GET", f"{inside}/{size}", timeout=600) as answer:
        received = 0
        for piece in answer.iter_raw(1 << 20):
            received += len(piece)
            most = max(most, _memory_mib(one))
    assert received == size

    def body(length: int) -> Iterator[bytes]:
        nonlocal most
        piece = bytes(1 << 20)
        for begin in range(0, length, len(piece)):
            most = max(most, _memory_mib(one))
            yield piece[: length - begin]

    for begin in range(0, size, _BODY_BYTES):
        length = min(_BODY_BYTES, size - begin)
        headers = {"content-length": str(length)}
        sent = client.post(f"{inside}/", content=body(length), headers=headers, timeout=600)
        assert sent.text == str(length)
    assert most < before + 16, (before, most)
    client.delete(sandbox)
