"""Following of a build of ours, and its words for E2B's clients.

A build is followed by one stream of its events, from its start on, because clients poll its log by
numbers and want to know when each line came. The invariant: a build that can no longer be followed
is cancelled, and says so.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import httpx

from cellwall.apps.doors.e2b.templates.names import Shelf, of_build
from cellwall.client.connection.streaming import objects
from cellwall.client.connection.transport import NDJSON, Ask
from cellwall.model.errors import CellwallError

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.building.builds import Build
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.connection.transport import Json

_log = logging.getLogger("cellwall.server")
_NO_USER = "has no user"
_SHOWN_CHARACTERS = 2000


async def follow(client: AsyncClient, build: Build, begun: Json) -> None:
    """Follow a build to its end."""
    place = f"/templates/builds/{begun['id']}"
    try:
        ended = await _end_of(client, build, place)
        if ended["error"] is None:
            await _clear(client, build)
            build.change("ready")
        else:
            message, step = reason(build, ended["error"])
            build.change("error", message, step)
    except (CellwallError, httpx.TransportError) as error:
        build.change("error", f"the build could not be followed: {error}")
    finally:
        if build.status == "building":  # the server stops
            build.change("error", "the server has stopped; build again")
            with contextlib.suppress(CellwallError, httpx.TransportError):
                await client.transport.json(Ask("DELETE", place))


async def _end_of(client: AsyncClient, build: Build, place: str) -> Json:
    ended = None
    ask = Ask("GET", f"{place}/events", accept=NDJSON, is_held=True)
    async with client.transport.stream(ask) as response:
        async for event in objects(response):
            if event["type"] == "end":
                ended = event["build"]
            else:
                _tell(build, event)
    if ended is None:
        raise CellwallError("its stream broke off")
    found: Json = ended
    return found


def _tell(build: Build, event: Json) -> None:
    kind, line = event["type"], event.get("line", 0)
    if kind == "output":
        for text in str(event["text"]).splitlines():
            build.tell(text, line)
    elif kind == "step" and is_first(build, line):
        build.tell(f"[{build.step_of(line)}] {_shown(build, event)}", line)
    elif kind == "cached":
        build.tell("done before", line, "debug")


def is_first(build: Build, line: int) -> bool:
    """Report whether a line is the first of its step."""
    steps = {} if build.plan is None else build.plan.steps
    return line in steps and steps.get(line - 1) != steps[line]


def _shown(build: Build, event: Json) -> str:
    """Return what a step does, without programs of ours."""
    step = 0 if build.plan is None else build.plan.steps.get(event["line"], 0)
    command = None if build.plan is None else build.plan.commands.get(step)
    return str(event["text"] if not step else command or "prepared")[:_SHOWN_CHARACTERS]


def reason(build: Build, error: Json) -> tuple[str, str]:
    """Return message and step of a build that has failed, as E2B's clients know them."""
    line = error.get("line") or 0
    message, step = str(error["message"]), build.step_of(line)
    number = 0 if build.plan is None else build.plan.steps.get(line, 0)
    command = None if build.plan is None else build.plan.commands.get(number)
    said = f"failed to run command '{command}': command failed: " if command else ""
    if _NO_USER in message:
        user = message.partition(_NO_USER)[2].strip().split(" ")[0].strip(".;,")
        return f"{said}unauthenticated: invalid username: {user}", step
    status, output = error.get("exit_code"), str(error.get("output") or "")
    if status is None:
        remedy = error.get("remedy")
        return f"{said}{message}" + (f"; {remedy}" if remedy else ""), step
    return f"{said}exit status {status}: {output[-_SHOWN_CHARACTERS:].strip()}", step


async def _clear(client: AsyncClient, build: Build) -> None:
    """Remove builds whose last tag this build has taken."""
    if not build.displaced:
        return
    shelf = await Shelf.of(client)
    named = {shelf.build_of(own) for _, own in shelf.tags(build.stem)}
    for build_id in build.displaced - named - {build.id}:
        try:
            await client.templates.remove(of_build(build.stem, build_id))
        except CellwallError as error:  # a sandbox is on it, or it is gone
            _log.debug("e2b: build %s stays: %s", build_id, error)


def displaced(shelf: Shelf, stem: str, tags: tuple[str, ...]) -> frozenset[str]:
    """Return the ids of the builds that these tags mean now."""
    meant = {shelf.build_of(own) for tag, own in shelf.tags(stem) if tag in tags}
    return frozenset(meant & shelf.builds(stem).keys())
