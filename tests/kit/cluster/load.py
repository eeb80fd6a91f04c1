"""Load of a cluster by the SDK, which knows all gateways, and what of it began on the nodes.

Callers run one program after the other, and each has a session whose cells count. A program that
ran twice is a row too many in a node's store, a cell that ran twice a number too high.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import cellwall
from kit.cluster.processes import Cluster
from kit.servers import ALICE, state_of

_MOST_S = 900.0


class Load:
    """Callers at work, until `end`."""

    def __init__(self, made: Cluster, callers: int, *, has_sessions: bool = False) -> None:
        self.done = 0
        self._has_sessions = has_sessions
        self._news = threading.Condition()
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(callers)
        addresses = [made.address(number) for number in range(len(made.gateways))]
        self._callers: list[Future[None]] = [
            self._pool.submit(self._call, addresses[at:] + addresses[:at])
            for at in (number % len(addresses) for number in range(callers))
        ]

    def _call(self, addresses: list[str]) -> None:
        count = 0
        with cellwall.connect(addresses, ALICE) as client, contextlib.ExitStack() as stack:
            session = stack.enter_context(client.Sandbox()) if self._has_sessions else None
            if session is not None:
                session.run("count = -1")
            while not self._is_over.is_set():
                streamed: list[str] = []
                listen = None if count % 3 else lambda event: streamed.append(event.text or "")  # noqa: B023 - called at once
                told = client.run(f"print({count})", on_event=listen)
                assert told.stdout == f"{count}\n", told
                assert listen is None or "".join(streamed) == told.stdout
                if session is not None and count % 4 == 0:
                    assert session.run("count += 1; count").text == str(count // 4)
                count += 1
                with self._news:
                    self.done += 1
                    self._news.notify_all()

    def reach(self, count: int) -> None:
        """Wait until so many programs have had their answer. Raises the first failure."""
        with self._news:
            self._news.wait_for(lambda: self.done >= count or self._failures(), _MOST_S)
        for each in self._failures():
            each.result()
        assert self.done >= count

    def _failures(self) -> list[Future[None]]:
        return [each for each in self._callers if each.done() and each.exception() is not None]

    def end(self) -> int:
        """Return how many programs had their answer. Raises the first failure."""
        self._is_over.set()
        self._pool.shutdown()
        for each in self._callers:
            each.result()
        return self.done


def begun(made: Cluster) -> int:
    """Return how many one-shots have begun, by the stores of all nodes, which have ended."""
    return sum(_begun_at(made, name) for name in made.nodes)


def _begun_at(made: Cluster, name: str) -> int:
    path = state_of(made.folder / name) / "server" / "cellwall.db"
    with contextlib.closing(sqlite3.connect(path)) as store:
        query = (
            "SELECT count(*) FROM executions WHERE started_at IS NOT NULL AND sandbox_id IS NULL"
        )
        return int(store.execute(query).fetchone()[0])
