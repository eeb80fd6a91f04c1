"""Contexts of a sandbox: stateful interpreters, each doing one thing at a time.

Used by `sandbox`. Executions of one context queue in the order they came; contexts run beside
each other. The invariant: a context that ended is never mistaken for the one that was asked for:
the next execution starts a new one and says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.engine.requests import check_words
from cellwall.model.errors import Conflict, NotFound, SandboxBroken, UsageError
from cellwall.runtimes.channel import FrameError, GuestRefused, strict_json

if TYPE_CHECKING:
    from cellwall.engine.live import Live


class Contexts:
    """The contexts of one sandbox."""

    def __init__(self, live: Live) -> None:
        """Those named in the sandbox's spec exist already."""
        self._live = live
        self._locks: dict[str, asyncio.Lock] = {name: asyncio.Lock() for name in live.spec.contexts}
        self._ended: set[str] = set()

    def lock(self, name: str) -> asyncio.Lock:
        """Return the queue of one context; `NotFound` if there is none of that name."""
        lock = self._locks.get(name)
        if lock is None:
            raise NotFound(
                f"context {name!r}: there is none in sandbox {self._live.spec.sandbox_id}",
                remedy=f"create it; there are: {', '.join(self._locks) or 'none'}",
            )
        return lock

    def mark_ended(self, name: str) -> None:
        """Remember that a context's process has ended."""
        self._ended.add(name)

    async def ensure(self, name: str) -> bool:
        """Start a new context in place of one that has ended; report whether that was needed."""
        if name not in self._ended:
            return False
        await self._ask("context_create", name)
        self._ended.discard(name)
        return True

    async def create(self, name: str) -> None:
        """Start another context."""
        check_words([name], "context name")
        if not name or len(name) > 64:
            raise UsageError("context name: needs 1 to 64 characters", remedy="shorten it")
        if name in self._locks:
            raise Conflict(f"context {name!r}: it exists", remedy="use it, or restart it")
        self._locks[name] = asyncio.Lock()
        try:
            await self._ask("context_create", name)
        except BaseException:
            del self._locks[name]
            raise

    async def list(self) -> list[str]:
        """Return the names of the contexts that are alive, as the guest knows them."""
        self._live.check_alive()
        reply = await self._live.channel.request("context_list")
        try:
            entries = strict_json(reply.body) if reply.body else reply.header.get("contexts")
            if not isinstance(entries, list):
                raise FrameError("not a list")
        except FrameError as error:
            raise SandboxBroken(f"context_list: {error}", remedy="close the sandbox") from None
        names = [e.get("name") if isinstance(e, dict) else e for e in entries]
        return [name for name in names if isinstance(name, str) and name in self._locks]

    async def close(self, name: str) -> None:
        """End a context; what runs in it is killed."""
        self.lock(name)
        if name not in self._ended:
            await self._ask("context_close", name)
        self._ended.discard(name)
        del self._locks[name]

    async def restart(self, name: str = "main") -> None:
        """End a context and start it afresh."""
        self.lock(name)
        if name not in self._ended:
            await self._ask("context_close", name)
            self._ended.add(name)
        await self.ensure(name)

    async def _ask(self, op: str, name: str) -> None:
        self._live.check_alive()
        self._live.touch()
        try:
            await self._live.channel.request(op, context=name)
        except GuestRefused as refusal:
            if refusal.reason == "no_context" and op == "context_close":
                return  # it ended by itself a moment ago
            raise Conflict(f"{op} {name!r}: {refusal}", remedy="look at contexts.list()") from None
