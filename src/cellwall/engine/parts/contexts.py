"""Contexts of a sandbox: stateful interpreters, each running one execution at a time.

Used by `sandbox`. Executions of one context queue in the order of arrival; different contexts run
concurrently. The invariant: the engine never confuses a context that ended with its successor of
the same name. The next execution after an end starts a new interpreter and reports that, and an
execution that waited for a closed context does not run in a later context of that name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from cellwall.languages import registry
from cellwall.model.context import ContextName, check_name
from cellwall.model.errors import Conflict, NotFound, SandboxBroken, UsageError
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import REPLY, GuestRefused, Reply, Single

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.languages.entries.language import Language
    from cellwall.runtimes.channel.take_over import ContextFound

MAIN = "main"
"""Name for the default context of the requested language, or of Python if none is requested."""
DEFAULT = "python"
"""Name of the context that exists from the start. Every default context has its language's name."""


def called(name: str) -> str:
    """Return the engine's name for the context that a caller addresses as `name`, or as `main`."""
    return DEFAULT if name == MAIN else name


def inside(name: str) -> str:
    """Return the guest's name for a context: `main` is the guest's name for the initial context."""
    return MAIN if name == DEFAULT else name


@dataclass(slots=True, eq=False)
class _Context:
    """State of one context."""

    language: Language
    state: Literal["unborn", "alive", "ended"] = "unborn"
    """`unborn` until the first start. The default context of a language other than Python starts
    with its first cell."""
    birth: object = field(default_factory=object)
    """Token that identifies the current interpreter process: a new object with each start."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that queues the context's cells."""
    is_successor: bool = False
    """Whether its interpreter stands in for one that has ended, and no cell has been told."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock held by the task that starts the context: a cell and a restart may want that at once."""


class Contexts:
    """The contexts of one sandbox."""

    def __init__(self, live: ClaimedSandbox) -> None:
        """Begin with the contexts that the sandbox's spec names; the guest has started them."""
        self._live = live
        python = registry.find("python")
        self._known = {called(name): _Context(python, "alive") for name in live.spec.contexts}
        # An image's interpreter is started by the first cell: many are used for commands only.
        self._known.setdefault(DEFAULT, _Context(python))
        self._leaving: dict[str, asyncio.Future[Reply]] = {}
        """Names that the guest may still use, each with a future that is done when the guest has
        ended the previous context of that name."""

    def names(self) -> list[str]:
        """Return the names of the contexts that have an interpreter."""
        return [name for name, context in self._known.items() if context.state == "alive"]

    def spoken(self) -> dict[str, str]:
        """Return the language of each context that has an interpreter, by its name."""
        return {name: self._known[name].language.name for name in self.names()}

    def known(self) -> dict[str, str]:
        """Return the language of each context that there is, or was, by its name."""
        return {name: context.language.name for name, context in self._known.items()}

    def is_busy(self, name: str) -> bool:
        """Whether a cell has the turn of a context."""
        context = self._known.get(name)
        return context is not None and context.turn.locked()

    def end_others(self) -> None:
        """Record that the interpreters of all contexts but the default one have ended."""
        for name, context in self._known.items():
            if name != DEFAULT and context.state == "alive":
                context.state = "ended"

    def begin_anew(self) -> None:
        """Record that all have ended, and the default one is that of a fresh sandbox."""
        self.end_others()
        default = self._known.setdefault(DEFAULT, _Context(registry.find("python")))
        default.state, default.birth, default.is_successor = "alive", object(), True

    def is_told_of_successor(self, name: str) -> bool:
        """Whether the cell that asks is the first in an interpreter that stands in for another."""
        context = self._find(name)
        found, context.is_successor = context.is_successor, False
        return found

    def take_over(self, spoken: Mapping[str, str]) -> None:
        """Know the contexts that a copy has had since its start."""
        for name, language in spoken.items():
            self._known[name] = _Context(registry.find(language), "alive")

    def sleep_on(self, known: Mapping[str, str]) -> None:
        """Know the contexts that a hibernated sandbox had; only the default one comes back.

        Those of a language that this version does not know are not listed.
        """
        self._known = {
            name: _Context(registry.LANGUAGES[language], "alive" if name == DEFAULT else "ended")
            for name, language in known.items()
            if language in registry.LANGUAGES
        }
        self._known.setdefault(DEFAULT, _Context(registry.find("python")))

    def resume(self, found: Iterable[ContextFound]) -> None:
        """Begin with the contexts that an earlier server's sandbox has instead.

        One of a language that this version does not know is not listed, and ends with the sandbox.
        """
        spoken = {each.context: each for each in registry.LANGUAGES.values() if each.context}
        self._known = {
            called(each.name): _Context(spoken[each.language], "alive")
            for each in found
            if each.language in spoken and each.state != "ending"
        }
        self._known.setdefault(DEFAULT, _Context(registry.find("python"), "ended"))

    @contextlib.asynccontextmanager
    async def alone(self, guest_name: str) -> AsyncIterator[None]:
        """Hold the turn of a context, by the guest's name for it, if there is one."""
        context = self._known.get(called(guest_name))
        if context is None:
            yield
            return
        async with context.turn:
            yield

    async def note_ended(self, guest_name: str) -> None:
        """Record that a context's interpreter has ended, if the guest lists it no more."""
        context = self._known.get(called(guest_name))
        if context is not None and called(guest_name) not in list(await self.list()):
            context.state = "ended"

    def language(self, name: str) -> Language | None:
        """Return the language that a context runs; None if there is no context of that name."""
        context = self._known.get(called(name))
        return None if context is None else context.language

    @contextlib.asynccontextmanager
    async def turn(
        self, name: str, language: Language | None
    ) -> AsyncIterator[tuple[str, Language]]:
        """Wait for a cell's turn in the context `name`; yield the context's name and its language.

        `main` stands for the default context of `language`, which has the language's name and, for
        languages other than Python, starts with its first cell. Raises `Conflict` if the context
        runs another language; `NotFound` if there is no context of that name or it was closed
        meanwhile.
        """
        while True:
            chosen = self._chosen(name, language)
            context = self._find(chosen)
            async with context.turn:
                if self._known.get(chosen) is context:
                    yield chosen, context.language
                    return
            if chosen == called(name):
                self._check_still(chosen, context)

    def _chosen(self, name: str, language: Language | None) -> str:
        if language is not None and name == MAIN and language.context != "python":
            name = language.name
            if name not in self._known:
                self._known[name] = _Context(language)
        name = called(name)
        spoken = self.language(name)
        if language is not None and spoken is not None and spoken.name != language.name:
            raise Conflict(
                f"context {name!r}: it runs {spoken.name}, not {language.name}",
                remedy=f"leave the context out, or create one with language={language.name!r}",
            )
        return name

    def check(self, name: str) -> None:
        """Raise `NotFound` if there is no context of that name."""
        self._find(name)

    def _find(self, name: str) -> _Context:
        context = self._known.get(called(name))
        if context is None:
            raise NotFound(
                f"context {name!r}: there is none in sandbox {self._live.spec.sandbox_id}",
                remedy=f"create it; there are: {', '.join(self._known) or 'none'}",
            )
        return context

    def _check_still(self, name: str, context: _Context) -> None:
        if self._known.get(name) is not context:
            raise NotFound(f"context {name!r}: it was closed meanwhile", remedy="create it again")

    def birth(self, name: str) -> object:
        """Return the token of the interpreter process that runs the context's cells now."""
        return self._find(name).birth

    def mark_ended(self, name: str, birth: object) -> None:
        """Record that the interpreter `birth` has ended, unless a newer one already runs."""
        context = self._known.get(called(name))
        if context is not None and context.birth is birth:
            context.state = "ended"

    async def ensure(self, name: str) -> bool:
        """Start the context's interpreter unless it runs; report whether one had ended before."""
        context = self._find(name)
        async with context.starting:
            self._check_still(name, context)
            if context.state == "alive":
                return False
            is_first = context.state == "unborn"
            try:
                await self._start(name, context)
            except BaseException:
                # callers may ask for any known language; do not keep contexts that failed to start
                if is_first:
                    self._forget(name, context)
                raise
        return not is_first

    async def create(self, name: str, language: str = "python") -> ContextName:
        """Create a context of any language that keeps state between cells; return its name."""
        spoken = registry.find(language)
        if spoken.context is None:
            raise UsageError(
                f"context {name!r}: {spoken.name} keeps no state between cells",
                remedy=f"run it without a context; these do: {', '.join(speaking())}",
            )
        name = spoken.name if name == MAIN else check_name(name)
        if name in self._known:
            raise Conflict(f"context {name!r}: it exists", remedy="use it, or restart it")
        self._known[name] = _Context(spoken)
        await self.ensure(name)
        return ContextName(name, spoken.name)

    async def list(self) -> list[ContextName]:
        """Return the names of the contexts that are alive, each with its `language`.

        A paused sandbox is not asked, and sleeps on: none of its contexts can begin or end.
        """
        self._live.check_alive()
        if self._live.pausing is not None and self._live.pausing.has_paused:
            return [ContextName(name, self._known[name].language.name) for name in self.names()]
        await self._live.enter()
        with self._live.speaking():
            reply = await self._live.channel.request("context_list")
        try:
            body, header = reply.body, reply.header
            entries = self._live.channel.take_apart(body) if body else header.get("contexts")
            if not isinstance(entries, list):
                raise FrameError("not a list")
        except FrameError as error:
            raise SandboxBroken(f"context_list: {error}", remedy="close the sandbox") from None
        names = [e.get("name") if isinstance(e, dict) else e for e in entries]
        names = [called(name) for name in names if isinstance(name, str)]
        known = [name for name in names if name in self._known]
        return [ContextName(name, self._known[name].language.name) for name in known]

    async def close(self, name: str) -> None:
        """Close a context: kill the execution that runs in it and refuse those that wait for it."""
        context, name = self._find(name), called(name)
        self._forget(name, context)
        if context.state == "alive" or context.starting.locked():
            await self._left(name)

    def _forget(self, name: str, context: _Context) -> None:
        if self._known.get(name) is context:
            del self._known[name]

    async def restart(self, name: str = MAIN) -> None:
        """End a context's interpreter and start a new one, in which waiting executions run."""
        context, name = self._find(name), called(name)
        if context.state == "alive":
            context.state = "ended"
            await self._left(name)
        await self.ensure(name)

    # -- the guest's side ------------------------------------------------------------------

    async def _start(self, name: str, context: _Context) -> None:
        if name in self._leaving:
            await asyncio.wait([self._leaving[name]])
            self._check_still(name, context)
        await self._live.enter()
        language = context.language
        try:
            with self._live.speaking():
                await self._live.channel.request(
                    "context_create", context=inside(name), language=language.context
                )
        except GuestRefused as refusal:
            if refusal.reason in {"not_found", "unsupported"}:
                raise UsageError(
                    f"context {name!r}: start {language.name}: {refusal}",
                    remedy=f"install it: {language.install}",
                ) from None
            raise _conflict("context_create", name, refusal) from None
        except asyncio.CancelledError:
            self._leave(name)  # the guest continues the creation that it was asked for
            raise
        context.state, context.birth, context.is_successor = "alive", object(), False

    async def _left(self, name: str) -> None:
        """Ask the guest to close the context `name` and wait for that.

        The guest closes it even if this call is cancelled.
        """
        await self._live.enter()
        self._leave(name)
        try:
            with self._live.speaking():
                await asyncio.shield(self._leaving[name])
        except GuestRefused as refusal:
            if refusal.reason != "no_context":  # it ended by itself a moment ago
                raise _conflict("context_close", name, refusal) from None

    def _leave(self, name: str) -> None:
        channel = self._live.channel
        if not channel.is_open:
            return
        gone: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        channel.open("context_close", Single(gone, None), REPLY, {"context": inside(name)})
        self._leaving[name] = gone
        gone.add_done_callback(partial(self._note_gone, name))

    def _note_gone(self, name: str, gone: asyncio.Future[Reply]) -> None:
        gone.exception()  # possibly no task waits; avoid asyncio's "never retrieved" log line
        if self._leaving.get(name) is gone:
            del self._leaving[name]


def _conflict(op: str, name: str, refusal: GuestRefused) -> Conflict:
    return Conflict(f"{op} {name!r}: {refusal}", remedy="look at contexts.list()")


def speaking() -> list[str]:
    """Return the languages that keep state between cells."""
    return [each.name for each in registry.LANGUAGES.values() if each.context is not None]
