"""Templates of a server that the caller's tenant builds: built, listed, removed.

Made by the clients. The objects are the server's own (`GET /templates/{name}`), as JSON. A sandbox
gets one by `client.Sandbox(template="task:1")`. The invariant: a build whose caller gives up is
cancelled on the server.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from cellwall.client.connection.streaming import objects
from cellwall.client.connection.transport import NDJSON, Ask, Json, Transport, segment
from cellwall.client.templates.form import form_of
from cellwall.model.errors import CellwallError, NotFound
from cellwall.wire import asking
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.surface.sync.loop_thread import LoopThread

OnEvent = Callable[[Json], None]
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:")


class AsyncTemplates:
    """The templates that one tenant builds."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def build(  # noqa: PLR0913 - the parts of a build
        self,
        source: object,
        name: str,
        *,
        context: str | Path | None = None,
        arguments: Mapping[str, str] | None = None,
        target: str | None = None,
        network: object = None,
        limits: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
    ) -> Json:
        """Build a template and return it: from `ImageSteps`, a Dockerfile's path, or its text.

        `context`: the directory whose files `COPY` copies, without those of `.dockerignore`.
        `on_event` hears the objects of the build's log. Raises UsageError, QuotaExceeded, and the
        error of a failed step, which names its line. A key of scope `manage` is needed.
        """
        text = source.read_text("utf-8") if isinstance(source, Path) else str(source)
        body = {
            "name": name,
            "dockerfile": text,
            **asking.given(
                arguments=None if arguments is None else dict(arguments),
                target=target,
                network=asking.network(network),
                limits=asking.limits(limits),
            ),
        }
        begun = await self._transport.json(_ask(body, context))
        place = f"/templates/builds/{segment(begun['id'], 'build', remedy='build again')}"
        try:
            ended = await self._followed(place, on_event)
        except BaseException:
            with contextlib.suppress(CellwallError):
                await asyncio.shield(self._transport.json(Ask("DELETE", place)))
            raise
        if ended["error"] is not None:
            raise _failure(ended["error"])
        template: Json = ended["template"]
        return template

    async def _followed(self, place: str, on_event: OnEvent | None) -> Json:
        """Return the build at its end. Raises ServerUnreachable if its stream breaks off."""
        after, last = 0, None
        while last is None:
            ask = Ask("GET", f"{place}/events", {"after": after}, accept=NDJSON, is_held=True)
            try:
                async with self._transport.stream(ask) as response:
                    async for event in objects(response):
                        after = event["seq"]
                        if event["type"] == "end":
                            last = event["build"]
                        elif on_event is not None:
                            on_event(event)
            except httpx.TransportError as error:
                raise self._transport.unreachable(error) from error
        found: Json = last
        return found

    async def list(self) -> builtins.list[Json]:
        """Return the templates of the tenant, by name."""
        found: builtins.list[Json] = (await self._transport.json(Ask("GET", "/templates")))["own"]
        return found

    async def get(self, name: str) -> Json:
        """Return one of them. Raises NotFound."""
        return await self._transport.json(Ask("GET", _path(name)))

    async def remove(self, name: str) -> None:
        """Remove one. Raises NotFound, and Conflict while a sandbox is on it."""
        await self._transport.json(Ask("DELETE", _path(name)))


class Templates:
    """The same for synchronous programs."""

    def __init__(self, thread: LoopThread[AsyncClient]) -> None:
        self._thread = thread

    def build(self, source: object, name: str, **options: Any) -> Json:  # noqa: ANN401 - as AsyncTemplates
        """Build a template and return it; see `AsyncTemplates.build`."""
        on_event = options.pop("on_event", None)
        return self._thread.call(
            lambda client, put: client.templates.build(source, name, on_event=put, **options),
            on_event,
        )

    def list(self) -> builtins.list[Json]:
        """Return the templates of the tenant, by name."""
        return self._thread.call(lambda client, _put: client.templates.list())

    def get(self, name: str) -> Json:
        """Return one of them. Raises NotFound."""
        return self._thread.call(lambda client, _put: client.templates.get(name))

    def remove(self, name: str) -> None:
        """Remove one; see `AsyncTemplates.remove`."""
        self._thread.call(lambda client, _put: client.templates.remove(name))


def _ask(body: Json, context: str | Path | None) -> Ask:
    if context is None:
        return Ask("POST", "/templates", body=body, is_held=True)
    media, content = form_of(body, context)
    return Ask("POST", "/templates", content=content, media=media, is_held=True)


def _failure(error: Json) -> CellwallError:
    """Return the error of a build, with the line and the exit code of the step."""
    made = error_of(error)
    made.add_note(f"line {error['line']}: {error['step'][:200]}")
    return made


def _path(name: str) -> str:
    if not name or set(name) - _NAME or name.startswith("."):
        raise NotFound(f"template {name[:80]!r}: there is none", remedy="list templates")
    return f"/templates/{quote(name)}"
