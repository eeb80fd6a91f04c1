"""Debian's `docker-registry` on loopback, with its data in a folder of the test."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit import waiting


@contextmanager
def serving(program: str, place: Path) -> Iterator[int]:
    """Serve an empty registry for the length of a block; yield its port."""
    place.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(place / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (place / "config.yml").write_text(json.dumps(settings), encoding="ascii")  # JSON is YAML
    running = subprocess.Popen(
        [program, "serve", str(place / "config.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        waiting.wait_until(lambda: _answers(port), "the registry answers")
        yield port
    finally:
        running.terminate()
        running.wait(20)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
