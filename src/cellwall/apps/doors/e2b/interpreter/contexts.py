"""Contexts of the interpreter: the sandbox's contexts, with a directory and a count of their own.

Each language has a default context, whose id is the language's name. What is remembered here is
lost with the server; the contexts themselves are the sandbox's.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.e2b.daemon.users import HOME
from cellwall.languages import registry
from cellwall.model.errors import NotFound, UsageError
from cellwall.model.ids import new_id
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.client.sandbox import AsyncSandbox

DEFAULTS = ("python", "javascript")
"""Languages whose default contexts are always listed."""
_MOST_SANDBOXES = 4096
_MOST_CONTEXTS = 256
_MOST_BODY_BYTES = 64 * 1024
_ENTER: Mapping[str, str] = {
    "python": "__import__('os').chdir({place})",
    "javascript": "process.chdir({place})",
    "typescript": "process.chdir({place})",
    "r": "setwd({place})",
}
"""Cell that changes the directory, of languages that have one."""


def language_of(given: str | None) -> str:
    """Return a language's name as cellwall has it; a word that is none as it is."""
    word = (given or "python").strip()
    try:
        return registry.find(word).name
    except NotFound:
        return word


@dataclass(slots=True)
class Context:
    """What is remembered of one context."""

    id: str
    language: str
    cwd: str = HOME
    count: int = 0
    """Executions so far."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the execution under way: its variables are set and set back by cells of their own,
    between which no other may come."""

    def as_json(self) -> dict[str, Any]:
        """Return the object of the routes."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    @property
    def name(self) -> str:
        """Name of the sandbox's context."""
        return "main" if self.id == self.language else self.id


class Contexts:
    """The contexts of all sandboxes."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, OrderedDict[str, Context]] = OrderedDict()

    def _own(self, sandbox_id: str) -> OrderedDict[str, Context]:
        own = self._all.setdefault(sandbox_id, OrderedDict())
        self._all.move_to_end(sandbox_id)
        while len(self._all) > _MOST_SANDBOXES:
            self._all.popitem(last=False)
        return own

    def _keep(self, sandbox_id: str, context: Context) -> Context:
        """Remember a context; return the one that is remembered by its id. Raises HttpError 429."""
        own = self._own(sandbox_id)
        if context.id not in own and len(own) >= _MOST_CONTEXTS:
            raise HttpError(429, "quota", f"a sandbox may have {_MOST_CONTEXTS} contexts")
        return own.setdefault(context.id, context)

    async def find(self, sandbox: AsyncSandbox, context_id: str) -> Context:
        """Return a context. Raises HttpError 404."""
        found = (await self._listed(sandbox)).get(context_id)
        if found is None:
            raise _unknown(context_id)
        return found

    def default(self, sandbox_id: str, language: str) -> Context:
        """Return a language's default context. Raises HttpError 429."""
        made = Context(language, language)
        try:
            registry.find(language)
        except NotFound:
            return made  # the execution is refused, and no client fills the table with words
        return self._keep(sandbox_id, made)

    async def of(
        self, sandbox: AsyncSandbox, context_id: str | None, language: str | None
    ) -> Context:
        """Return the context of an execution. Raises HttpError."""
        if context_id is None:
            return self.default(sandbox.id, language_of(language))
        if language is not None:
            raise HttpError(400, "usage", "give a context or a language, not both")
        known = self._own(sandbox.id).get(context_id)
        return known or self._keep(sandbox.id, await self.find(sandbox, context_id))

    async def _listed(self, sandbox: AsyncSandbox) -> dict[str, Context]:
        """Return the default contexts, and those that are alive, in the order of their making."""
        own = self._own(sandbox.id)
        alive = {str(name): name.language for name in await sandbox.contexts.list()}
        found = {language: own.get(language, Context(language, language)) for language in DEFAULTS}
        found |= {name: each for name, each in own.items() if name == each.language}
        found |= {name: each for name, each in own.items() if name in alive}
        for name, language in alive.items():
            if name not in found and name != "main":
                found[name] = Context(name, language)
        return found

    # -- routes ----------------------------------------------------------------------------

    async def index(self, seat: Seat) -> None:
        """Answer `GET /contexts`."""
        shown = [each.as_json() for each in (await self._listed(seat.sandbox)).values()]
        await _answer(seat, shown)

    async def create(self, seat: Seat) -> None:
        """Answer `POST /contexts`."""
        body = await body_of(seat)
        language, cwd = language_of(text(body, "language")), text(body, "cwd") or HOME
        if cwd != HOME and language not in _ENTER:
            raise UsageError(f"cwd: contexts of {language} begin in {HOME}")
        context = Context(new_id(), language, cwd)
        await seat.sandbox.contexts.create(context.name, language)
        try:
            await _enter(seat.sandbox, context)
            self._keep(seat.sandbox.id, context)
        except BaseException:
            await seat.sandbox.contexts.close(context.name)
            raise
        await _answer(seat, context.as_json())

    async def restart(self, seat: Seat) -> None:
        """Answer `POST /contexts/{id}/restart`: what its code has made is lost."""
        context = await self.find(seat.sandbox, seat.request.params["context_id"])
        if await _is_alive(seat.sandbox, context):
            await seat.sandbox.contexts.restart(context.name)
            await _enter(seat.sandbox, context)
        context.count = 0
        await _answer(seat, None)

    async def remove(self, seat: Seat) -> None:
        """Answer `DELETE /contexts/{id}`."""
        context = await self.find(seat.sandbox, seat.request.params["context_id"])
        if await _is_alive(seat.sandbox, context):
            await seat.sandbox.contexts.close(context.name)
        self._own(seat.sandbox.id).pop(context.id, None)
        await _answer(seat, None)


async def _is_alive(sandbox: AsyncSandbox, context: Context) -> bool:
    """Whether the sandbox has it: a default context begins with its first execution."""
    return context.name in {str(name) for name in await sandbox.contexts.list()}


async def _enter(sandbox: AsyncSandbox, context: Context) -> None:
    """Have a context's code begin in its directory. Raises UsageError if there is none."""
    if context.cwd == HOME:
        return
    cell = _ENTER[context.language].format(place=json.dumps(context.cwd, ensure_ascii=False))
    result = await sandbox.run(cell, context=context.name)
    if not result.ok:
        raise UsageError(f"cwd: {context.cwd!r} cannot be entered")


def _unknown(context_id: str) -> HttpError:
    return HttpError(404, "not_found", f"Context {context_id[:80]} not found")


async def body_of(seat: Seat, most_bytes: int = _MOST_BODY_BYTES) -> dict[str, Any]:
    """Return the object in a request's body. Raises UsageError."""
    data = await seat.request.body(most_bytes)
    try:
        body = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise UsageError("body: it is not JSON") from None
    if not isinstance(body, dict):
        raise UsageError("body: it is not an object")
    return body


def text(body: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is text, or absent. Raises UsageError."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name}: it is not text")
    return value


async def _answer(seat: Seat, value: object) -> None:
    await seat.request.answer_bytes(json.dumps(value).encode("ascii"), "application/json")
