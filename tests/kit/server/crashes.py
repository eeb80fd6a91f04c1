"""Servers that are killed and started again on the same state directory, and what they did.

The ledger and the list of starts are written by the server process outside every sandbox
(`failing_main`), so they are witnesses that neither a sandbox nor the store can change.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kit.servers import ALICE, Server, configuration, start

ENTRY = (str(Path(__file__).with_name("failing_main.py")),)
_PATIENCE_S = 40.0


def program(nonce: str, then: str = "") -> str:
    """Return a program that the ledger knows by `nonce`."""
    return f"nonce = '{nonce}'\nprint(nonce, flush=True)\n{then}"


@dataclass
class House:
    """One state directory and the servers that come and go on it."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    flags: tuple[str, ...] = ("--port", "0")
    servers: list[Server] = field(default_factory=list)
    more: str = ""
    """Other tables of its configuration."""

    @property
    def database(self) -> Path:
        """Where its records are."""
        return self.folder / "state" / "server" / "cellwall.db"

    @property
    def full(self) -> Path:
        """While it exists, the disk is full for the writes that were named."""
        return self.folder / "full"

    @property
    def ledger(self) -> list[str]:
        """Return the nonce of each program for which code was handed over, in order."""
        return _lines(self.folder / "ledger")

    @property
    def starts(self) -> list[str]:
        """Return the ids of executions whose start became durable apart, in order."""
        return _lines(self.folder / "starts")

    def start(self, kill: str = "", full: str = "") -> Server:
        """Start a server."""
        environ = {
            "CELLWALL_TEST_KILL": kill,
            "CELLWALL_TEST_FULL": f"{full}:{self.full}" if full else "",
            "CELLWALL_TEST_LEDGER": str(self.folder / "ledger"),
            "CELLWALL_TEST_CLOCK": str(self.folder / "clock"),
            "CELLWALL_TEST_STARTS": str(self.folder / "starts"),
        }
        config = configuration(self.more, **{"warm": [], **self.settings})
        made = start(self.folder, *self.flags, environ=environ, config=config, entry=ENTRY)
        self.servers.append(made)
        return made

    def kill(self, server: Server) -> None:
        """Kill it, if it has not killed itself, and wait until it is gone."""
        server.process.kill()
        server.process.wait()

    def stop(self) -> None:
        """Stop whatever still runs."""
        for server in self.servers:
            server.stop()


@contextlib.contextmanager
def house(folder: Path, **settings: object) -> Iterator[House]:
    """Give a house; its servers are stopped at the end."""
    made = House(folder, settings)
    try:
        yield made
    finally:
        made.stop()


def selected(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Return what SQL finds in the database of a server, which may run or be dead.

    Closed at once, and by a connection that may not write: the last one that may folds the log in
    when it goes, and the next server misses the log. Forgetting a connection does not close it, it
    is part of a cycle with its cache of statements.
    """
    name = f"{database.as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(name, uri=True)) as opened:
        return opened.execute(query).fetchall()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.exists() else []


def died(client: httpx.Client, body: dict[str, Any], **headers: str) -> None:
    """Ask for an execution of a server that kills itself before it answers."""
    with contextlib.suppress(httpx.TransportError):
        answer = client.post("/execute", json=body, headers=headers)
        raise AssertionError(f"it lived: {answer.status_code} {answer.text}")


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Return when `condition` holds; it must come to pass within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def posted(path: str, body: dict[str, Any]) -> bytes:
    """Return a POST as bytes, for callers that do not wait for the answer."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {ALICE}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def ended(client: httpx.Client, execution_id: str) -> dict[str, Any]:
    """Return the answer of an execution once it has ended."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        answer = client.get(f"/executions/{execution_id}", params={"wait": 5})
        assert answer.status_code == 200, answer.text
        value: dict[str, Any] = answer.json()
        if value["verdict"] is not None:
            return value
        assert time.monotonic() < deadline, value


def submitted(client: httpx.Client, code: str, **body: object) -> str:
    """Submit a program to the background and return its id."""
    answer = client.post("/execute", json={"code": code, "background": True, **body})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/executions/{answer.json()['execution_id']}"
    return str(answer.json()["execution_id"])


def events(client: httpx.Client, execution_id: str, after: int = 0) -> list[dict[str, Any]]:
    """Return the events of an execution after a number."""
    answer = client.get(f"/executions/{execution_id}/events", params={"after": after})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]
