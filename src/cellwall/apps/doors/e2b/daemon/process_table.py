"""Table of processes: which command of the server a client means by a pid or a tag.

The server knows its commands by ids of its own; this table keeps what clients said of those that
they started here. What it has forgotten, or a server before it knew, is found by its pid as long as
it runs, without its tag. The invariant: a process is looked up in its own sandbox only.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon import inner
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid
from cellwall.model.errors import NotFound

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.daemon.pty import Screen
    from cellwall.client.connection.transport import Json
    from cellwall.client.live import RemoteSandboxHandle

_MOST_SANDBOXES = 4096
_MOST_PROCESSES = 1024
"""Processes of one sandbox that are kept here, ended ones too."""


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


class Processes:
    """The processes of all sandboxes."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, OrderedDict[int, Process]] = OrderedDict()

    def add(self, sandbox_id: str, process: Process) -> None:
        """Keep a process that was started; an earlier one of its pid has ended."""
        own = self._all.setdefault(sandbox_id, OrderedDict())
        self._all.move_to_end(sandbox_id)
        own.pop(process.pid, None)
        own[process.pid] = process
        while len(own) > _MOST_PROCESSES:
            own.popitem(last=False)
        while len(self._all) > _MOST_SANDBOXES:
            self._all.popitem(last=False)

    async def find(self, live: RemoteSandboxHandle, selector: Value | None) -> tuple[Process, Json]:
        """Return the process that a client means, and the server's object of it.

        Raises ConnectError `not_found`.
        """
        own = self._all.get(live.id, OrderedDict())
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
                del own[found.pid]  # so long ago that the server has forgotten it
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
        own = self._all.get(live.id, OrderedDict())
        by_id = {each.command_id: each for each in own.values()}
        return [
            by_id.get(facts["id"]) or _unknown(facts)
            for facts in await inner.commands(live)
            if facts["status"] == "running" and facts["pid"] is not None
        ]

    async def aclose(self) -> None:
        """Let go of the terminals; they go on without a reader."""
        for own in self._all.values():
            for each in own.values():
                if each.screen is not None:
                    await each.screen.aclose()
        self._all.clear()


def _unknown(facts: Json) -> Process:
    cmd, *args = facts["argv"] or [""]
    return Process(facts["id"], facts["pid"], {"cmd": cmd, "args": args})
