"""Contexts of a sandbox: stateful interpreters, each doing one thing at a time.

Used by `sandbox`. Executions of one context queue in the order they came; contexts run beside
each other. The invariant: a context that ended is never mistaken for the one that was asked for:
the next execution starts a new one and says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cellwall.engine.requests import check_words
from cellwall.languages import registry
from cellwall.model.context import ContextName
from cellwall.model.errors import Conflict, NotFound, SandboxBroken, UsageError
from cellwall.runtimes.answers import GuestRefused
from cellwall.runtimes.frames import FrameError, strict_json

if TYPE_CHECKING:
    from cellwall.engine.live import Live
    from cellwall.languages.language import Language

MAIN = "main"
"""The context that is there from the start; asked for another language, that language's own."""


class Contexts:
    """The contexts of one sandbox."""

    def __init__(self, live: Live) -> None:
        """Those named in the sandbox's spec exist already."""
        self._live = live
        self._locks: dict[str, asyncio.Lock] = {name: asyncio.Lock() for name in live.spec.contexts}
        self._languages = dict.fromkeys(live.spec.contexts, registry.find("python"))
        self._ended: set[str] = set()
        self._unborn: set[str] = set()
        """Default contexts of languages, to be started with their first cell."""

    def language(self, name: str) -> Language | None:
        """Return what a context speaks; None if there is none of that name."""
        return self._languages.get(name)

    def chosen(self, name: str, language: Language | None) -> str:
        """Return the context that a cell of `language` sent to `name` runs in.

        `main` stands for the language's default context, which is called as the language is and
        starts with its first cell. `Conflict` if the context speaks something else.
        """
        if language is not None and name == MAIN and language.context != "python":
            name = language.name
            if name not in self._locks:
                self._locks[name] = asyncio.Lock()
                self._languages[name] = language
                self._unborn.add(name)
        spoken = self._languages.get(name)
        if language is not None and spoken is not None and spoken.name != language.name:
            raise Conflict(
                f"context {name!r}: it runs {spoken.name}, not {language.name}",
                remedy=f"leave the context out, or create one with language={language.name!r}",
            )
        return name

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
        if name in self._unborn:
            try:
                await self._start(name)
            except BaseException:
                self._forget(name)  # any name of a kernel may be asked for, and none of them stay
                raise
            self._unborn.discard(name)
            return False
        if name not in self._ended:
            return False
        await self._start(name)
        self._ended.discard(name)
        return True

    async def create(self, name: str, language: str = "python") -> ContextName:
        """Start another context, of any language that keeps state between cells; its name."""
        spoken = registry.find(language)
        if spoken.context is None:
            raise UsageError(
                f"context {name!r}: {spoken.name} keeps no state between cells",
                remedy=f"run it without a context; these do: {', '.join(speaking())}",
            )
        check_words([name], "context name")
        if not name or len(name) > 64:
            raise UsageError("context name: needs 1 to 64 characters", remedy="shorten it")
        if name in self._locks:
            raise Conflict(f"context {name!r}: it exists", remedy="use it, or restart it")
        self._locks[name] = asyncio.Lock()
        self._languages[name] = spoken
        try:
            await self._start(name)
        except BaseException:
            del self._locks[name], self._languages[name]
            raise
        return ContextName(name, spoken.name)

    async def list(self) -> list[ContextName]:
        """Return the names of the contexts that are alive; each knows its `language`."""
        self._live.check_alive()
        reply = await self._live.channel.request("context_list")
        try:
            entries = strict_json(reply.body) if reply.body else reply.header.get("contexts")
            if not isinstance(entries, list):
                raise FrameError("not a list")
        except FrameError as error:
            raise SandboxBroken(f"context_list: {error}", remedy="close the sandbox") from None
        names = [e.get("name") if isinstance(e, dict) else e for e in entries]
        known = [name for name in names if isinstance(name, str) and name in self._locks]
        return [ContextName(name, self._languages[name].name) for name in known]

    async def close(self, name: str) -> None:
        """End a context; what runs in it is killed."""
        self.lock(name)
        if name not in self._ended | self._unborn:
            await self._ask("context_close", name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._ended.discard(name)
        self._unborn.discard(name)
        del self._locks[name], self._languages[name]

    async def restart(self, name: str = "main") -> None:
        """End a context and start it afresh."""
        self.lock(name)
        if name not in self._ended | self._unborn:
            await self._ask("context_close", name)
            self._ended.add(name)
        await self.ensure(name)

    async def _start(self, name: str) -> None:
        language = self._languages[name]
        try:
            await self._ask("context_create", name, language=language.context)
        except GuestRefused as refusal:
            raise UsageError(
                f"context {name!r}: start {language.name}: {refusal}",
                remedy=f"install it: {language.install}",
            ) from None

    async def _ask(self, op: str, name: str, **fields: Any) -> None:  # noqa: ANN401 - of the frame
        self._live.check_alive()
        self._live.touch()
        try:
            await self._live.channel.request(op, context=name, **fields)
        except GuestRefused as refusal:
            if refusal.reason == "no_context" and op == "context_close":
                return  # it ended by itself a moment ago
            if refusal.reason in {"not_found", "unsupported"} and op == "context_create":
                raise
            raise Conflict(f"{op} {name!r}: {refusal}", remedy="look at contexts.list()") from None


def speaking() -> list[str]:
    """Return the languages that keep state between cells."""
    return [each.name for each in registry.LANGUAGES.values() if each.context is not None]
