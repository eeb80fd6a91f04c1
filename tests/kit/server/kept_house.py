"""Servers that leave their sandboxes to the next one (design/0040), and what loads them.

Not a test.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from cellwall.runtimes.jail.keeping.client import KeeperClient
from kit.server.crashes import House
from kit.servers import ALICE, Server, state_of
from kit.waiting import is_alive


@contextlib.contextmanager
def kept(folder: Path, **settings: object) -> Iterator[House]:
    """Servers that come and go on one state directory; their keeper is gone afterwards."""
    made = House(folder, {"keep_sessions": True, "stop_s": 1, **settings})
    try:
        yield made
    finally:
        made.stop()
        with contextlib.suppress(ProcessLookupError):
            if keeper := keeper_of(made):
                os.kill(keeper, signal.SIGKILL)


def keeper_of(house: House) -> int:
    """Return the pid of the keeper, as the kernel lists it; 0 if there is none."""
    words = f"{state_of(house.folder)}/guest/".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = entry.read_bytes()
            if words in text and b"\0session_keeper\0" in text and is_alive(int(entry.parts[2])):
                return int(entry.parts[2])
    return 0


def change_record(house: House, sandbox: str, **changes: Callable[[Any], object]) -> None:
    """Have the keeper's record of a sandbox say something else."""
    keeper = KeeperClient.find(state_of(house.folder))
    assert keeper is not None
    taken = keeper.take(sandbox)
    record = json.loads(taken.record)
    for field, change in changes.items():
        record[field] = change(record[field])
    keeper.put(sandbox, json.dumps(record).encode())
    for fd in taken.descriptors:
        os.close(fd)
    keeper.close()


@contextlib.contextmanager
def load(server: Server, sandboxes: list[str]) -> Iterator[None]:
    """Cells with output, uploads and commands in all of them, until the server is gone."""
    seed = random.Random(7)

    def work(sandbox: str) -> None:
        path = f"/sandboxes/{sandbox}"
        headers = {"X-API-Key": ALICE, "Accept": "application/json"}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.Client(base_url=server.address, headers=headers, timeout=20) as client,
        ):
            while True:
                code = f"print(x, 'y' * {seed.randint(1, 200_000)})"
                client.post(f"{path}/execute", json={"code": code})
                body = b"z" * seed.randint(1, 2_000_000)
                client.put(f"{path}/files", params={"path": "g"}, content=body)
                client.post(f"{path}/commands", json={"argv": ["sh", "-c", "echo a; sleep 0.1"]})

    threads = [threading.Thread(target=work, args=(each,)) for each in sandboxes]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
