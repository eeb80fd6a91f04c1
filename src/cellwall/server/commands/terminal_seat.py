"""The place of the one client that a terminal has at a time, and the wait for the next client.

Used by `routes.terminal`. The invariant: at most one client reads a terminal; a terminal without a
client is hung up after its `detach_s`, unless it goes on in the next server.
"""

from __future__ import annotations

import asyncio
import signal as signals
from typing import TYPE_CHECKING

from cellwall.model.errors import CellwallError
from cellwall.server.commands.following import is_left

if TYPE_CHECKING:
    from cellwall.engine.parts.terminals import Terminal
    from cellwall.server.executions.sandboxes import CommandRecord, SandboxRecord
    from cellwall.server.state import State


class Client:
    """One client that takes the place."""

    def __init__(self) -> None:
        self.replaced = asyncio.Event()
        """Set when another client wants the place."""
        self.gone = asyncio.Event()
        """Set when this one reads no more."""


class Seat:
    """The place at one terminal."""

    def __init__(
        self, state: State, owner: SandboxRecord, record: CommandRecord, terminal: Terminal
    ) -> None:
        """No client has the place yet, and nothing waits for one before `wait`."""
        self._state = state
        self._owner = owner
        self._record = record
        self.terminal = terminal
        self.unsent = b""
        """Output that was taken for a client and not sent to it: the next one gets it."""
        self._client: Client | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, client: Client) -> None:
        """Give the place to a client; the one before it leaves first."""
        before, self._client = self._client, client
        self._stop_waiting()
        if before is not None:
            before.replaced.set()
            await before.gone.wait()

    async def leave(self, client: Client) -> None:
        """Give the place up, if another client has not taken it."""
        client.gone.set()
        if self._client is not client:
            return
        self._client = None
        if not self._record.detach_s and not is_left(self._state, self._owner, self._record):
            await self._hang_up()
        else:
            self.wait()

    def wait(self, least_s: float = 0.0) -> None:
        """Wait for a client as long as was asked for, or `least_s`; then hang up."""
        self._stop_waiting()
        wait_s = max(least_s, self._record.detach_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer, least_s)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, least_s: float) -> None:
        self._timer = None
        if not self.terminal.is_running or is_left(self._state, self._owner, self._record):
            return
        if self._owner.status == "paused":
            self.wait(least_s)  # time stands still in it
        else:
            self._state.tasks.spawn(self._hang_up_quietly())

    async def _hang_up_quietly(self) -> None:
        try:
            await self._hang_up()
        except CellwallError:  # it has ended with its sandbox
            return

    async def _hang_up(self) -> None:
        if self.terminal.is_running:
            await self.terminal.kill(signals.SIGHUP)
        await self.terminal.close()
