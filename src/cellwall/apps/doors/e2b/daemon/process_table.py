"""Table of processes: which command of the server a client means by a pid or a tag.

The server knows its commands by ids of its own; this table keeps what clients said of those that
they started here. What it has forgotten, or a server before it knew, is found by its pid as long as
it runs, without its tag. The invariant: a process is looked up in its own sandbox only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon import inner
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid
from cellwall.model.errors import NotFound

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.daemon.pty import Screen
    from cellwall.client.connection.transport import Json
    from cellwall.client.live import RemoteSandboxHandle

_MOST_PROCESSES = 1024
"""Processes of one sandbox that are kept here, ended ones too."""
_MOST_OF_ONE, _MOST_OF_ALL = 1 << 20, 64 << 20
"""Bytes that the processes of one sandbox may take here, and those of all; the oldest go first."""
_PROCESS, _TEXT = 1024, 64
"""Bytes of a process without its texts, and of a text without its characters, about."""


@dataclass(slots=True)
class Process:
    """One process."""

    command_id: str
    pid: int
    config: Value
    """Program, arguments, variables and directory, as the client gave them."""
    tag: str | None = None
    screen: Screen | None = None
    """Its terminal, if it has one that was opened here."""
    attaching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its terminal is taken: a second client would take it from the first."""

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        config, envs = self.config, self.config.get("envs", {})
        ends = config.get("cmd", ""), config.get("cwd", "")
        texts = (*ends, *config.get("args", ()), *envs, *envs.values())
        return _PROCESS + sum(_TEXT + len(text) for text in texts)


class _Own:
    """The processes of one sandbox by their pids, the oldest first."""

    def __init__(self) -> None:
        self.by_pid: OrderedDict[int, Process] = OrderedDict()
        self.size = 0

    def add(self, process: Process) -> None:
        if process.pid in self.by_pid:
            self.drop(process.pid)
        self.by_pid[process.pid] = process
        self.size += process.size
        while len(self.by_pid) > 1 and self._is_full:
            self.drop(next(iter(self.by_pid)))

    @property
    def _is_full(self) -> bool:
        return len(self.by_pid) > _MOST_PROCESSES or self.size > _MOST_OF_ONE

    def drop(self, pid: int) -> None:
        self.size -= self.by_pid.pop(pid).size


class Processes:
    """The processes of all sandboxes."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, _Own] = OrderedDict()
        self._size = 0

    def add(self, sandbox_id: str, process: Process) -> None:
        """Keep a process that was started; an earlier one of its pid has ended."""
        own = self._all.setdefault(sandbox_id, _Own())
        self._all.move_to_end(sandbox_id)
        self._size -= own.size
        own.add(process)
        self._size += own.size
        while len(self._all) > 1 and self._size > _MOST_OF_ALL:
            _, oldest = self._all.popitem(last=False)
            self._size -= oldest.size

    def kept(self, sandbox_id: str, process: Process) -> Process:
        """Return the process that is kept for this one's command; without one, keep this one."""
        found = self._by_pid(sandbox_id).get(process.pid)
        if found is None or found.command_id != process.command_id:
            self.add(sandbox_id, process)
            return process
        return found

    def _by_pid(self, sandbox_id: str) -> OrderedDict[int, Process]:
        own = self._all.get(sandbox_id)
        return OrderedDict() if own is None else own.by_pid

    def _drop(self, sandbox_id: str, process: Process) -> None:
        """Forget a process; another one may be kept by its pid meanwhile."""
        own = self._all.get(sandbox_id)
        if own is not None and own.by_pid.get(process.pid) is process:
            own.drop(process.pid)
            self._size -= process.size
            if not own.by_pid:
                del self._all[sandbox_id]

    async def find(self, live: RemoteSandboxHandle, selector: Value | None) -> tuple[Process, Json]:
        """Return the process that a client means, and the server's object of it.

        Raises ConnectError `not_found`.
        """
        own = self._by_pid(live.id)
        found: Process | None = None
        if selector is not None and "pid" in selector:
            what = f"process with pid {selector['pid']} not found"
            found = own.get(selector["pid"])
        elif selector is not None and "tag" in selector:
            what = f"process with tag {selector['tag'][:80]} not found"
            found = next((p for p in reversed(own.values()) if p.tag == selector["tag"]), None)
        else:
            raise invalid("process: name it by pid or by tag")
        if found is not None:
            try:
                return found, await inner.command(live, found.command_id)
            except NotFound:
                self._drop(live.id, found)  # so long ago that the server has forgotten it
        elif "pid" in selector:
            for facts in await inner.commands(live):
                if facts["pid"] == selector["pid"] and facts["status"] == "running":
                    return _unknown(facts), facts
        raise ConnectError("not_found", what)

    async def running(
        self, live: RemoteSandboxHandle, selector: Value | None
    ) -> tuple[Process, Json]:
        """Return a process that has not ended, as `find`. Raises ConnectError `not_found`."""
        found, facts = await self.find(live, selector)
        if facts["status"] != "running":
            raise ConnectError("not_found", f"process with pid {found.pid} not found")
        return found, facts

    async def list(self, live: RemoteSandboxHandle) -> list[Process]:
        """Return the processes that run, also those that were not started here."""
        by_id = {each.command_id: each for each in self._by_pid(live.id).values()}
        return [
            by_id.get(facts["id"]) or _unknown(facts)
            for facts in await inner.commands(live)
            if facts["status"] == "running" and facts["pid"] is not None
        ]

    async def aclose(self) -> None:
        """Let go of the terminals; they go on without a reader."""
        for own in self._all.values():
            for each in own.by_pid.values():
                if each.screen is not None:
                    await each.screen.aclose()
        self._all.clear()
        self._size = 0


def _unknown(facts: Json) -> Process:
    cmd, *args = facts["argv"] or [""]
    return Process(facts["id"], facts["pid"], {"cmd": cmd, "args": args})
