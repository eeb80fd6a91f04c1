"""Routes of building: a build is reserved, its files are uploaded, it is started, and polled.

What is built, by whom, how often and how large is decided by the server's own `POST /templates`,
which each build becomes. The invariant: what a client asks for is in the request that the server
gets, or is refused by name.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.door import Route
from cellwall.apps.doors.e2b.answers import missing, refused, unsupported
from cellwall.apps.doors.e2b.building import bodies, translation
from cellwall.apps.doors.e2b.building.builds import Build, Builds, done_before
from cellwall.apps.doors.e2b.building.following import displaced, follow
from cellwall.apps.doors.e2b.building.translation import Base, Plan
from cellwall.apps.doors.e2b.control import pages
from cellwall.apps.doors.e2b.control.bodies import check_absent, read
from cellwall.apps.doors.e2b.templates.built_facts import BuiltFacts
from cellwall.apps.doors.e2b.templates.names import (
    DEFAULT_TAG,
    Called,
    Shelf,
    called,
    checked_tag,
    of_build,
)
from cellwall.apps.doors.e2b.uploads.links import PREFIX
from cellwall.client.connection.transport import Ask
from cellwall.client.templates.form import form_of
from cellwall.server.core.errors import HttpError
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.house import House
    from cellwall.client.connection.transport import Json

_HASH_DIGITS = frozenset("0123456789abcdef")
_MOST_BODY = 900_000
"""Bytes of the Dockerfile of a build; our builder takes a little more."""


class Building:
    """The routes."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._builds = Builds()
        self._tasks = Tasks()
        self.routes = (
            Route("POST", "/v3/templates", self.reserve),
            Route("GET", "/templates/{template_id}/files/{digest}", self.files),
            Route("PUT", f"{PREFIX}{{token}}", self.upload),
            Route("POST", "/v2/templates/{template_id}/builds/{build_id}", self.start),
            Route("GET", "/templates/{template_id}/builds/{build_id}/status", self.status),
            Route("POST", "/templates/tags", self.assign_tags),
            Route("DELETE", "/templates/tags", self.remove_tags),
        )

    async def aclose(self) -> None:
        """Follow no build any more; the server ends them."""
        await self._tasks.cancel()

    # -- reserved --------------------------------------------------------------------------

    async def reserve(self, visit: Visit) -> None:
        """`POST /v3/templates`."""
        request = visit.request
        _check_manages(visit)
        body = await read(request, bodies.NewTemplate)
        check_absent(body, "team_id", "min_free_disk_mb")
        request.state.templates.check_permitted()
        name = self._own_name(body.name or body.alias or "")
        tags = [*([name.tag] if name.tag else []), *map(checked_tag, body.tags or [])]
        wanted = tuple(dict.fromkeys(tags)) or (DEFAULT_TAG,)
        facts = BuiltFacts(cpus=body.cpu_count, memory_mb=body.memory_mb)
        build = self._builds.reserve(Build(request.owner, name.stem, wanted, facts))
        shown = {
            "templateID": build.stem,
            "buildID": build.id,
            "public": False,
            "names": [build.stem],
            "tags": list(build.tags),
            "aliases": [build.stem],
        }
        await self._house.answer(request, shown, 202)

    def _own_name(self, text: str) -> Called:
        """Return a name that a tenant may build."""
        name = called(text)
        if name.stem in self._house.options.templates:
            raise refused("name", f"{name.stem!r} is a template of the operator's")
        return name

    # -- uploaded --------------------------------------------------------------------------

    async def files(self, visit: Visit) -> None:
        """`GET /templates/{id}/files/{hash}`: whether the files are here, and where they go."""
        request = visit.request
        _check_manages(visit)
        stem, digest = request.params["template_id"], request.params["digest"]
        if len(digest) != 64 or set(digest) - _HASH_DIGITS:
            raise refused("hash", "it is no SHA-256 in hexadecimal digits")
        if not self._builds.has(request.owner, stem):
            raise missing(f"template '{stem[:100]}' not found: no build of it is reserved")
        is_here = await self._house.uploads.has(request.owner, digest)
        path = self._house.links.make(digest, request.caller)
        request.state.observer.redactor.learn_ours(path.removeprefix(PREFIX), "tokens")
        shown = {"present": is_here, "url": f"{self._house.address(request)}{path}"}
        await self._house.answer(request, shown, 201)

    async def upload(self, visit: Visit) -> None:
        """`PUT` to the address that `files` gave; the address says who, and which files."""
        request = visit.request
        opened = self._house.links.opened(f"{PREFIX}{request.params['token']}")
        if opened is None or opened.is_expired or opened.caller != request.caller:
            raise missing("path: there is nothing")
        request.state.headroom.check()
        most = min(request.settings.upload_bytes, self._house.options.uploads_mb << 20)
        await self._house.uploads.take(request.owner, opened.digest, request.pieces(most))
        await request.answer_bytes(b"", "application/json", 200)

    # -- started ---------------------------------------------------------------------------

    async def start(self, visit: Visit) -> None:
        """`POST /v2/templates/{id}/builds/{build}`."""
        request = visit.request
        _check_manages(visit)
        params = request.params
        build = self._builds.get(request.owner, params["template_id"], params["build_id"])
        body = await read(request, bodies.StartBuild)
        if body.from_image_registry:
            raise unsupported("fromImageRegistry, credentials of a client for a registry")
        if build.status != "waiting":
            raise HttpError(409, "conflict", f"build {build.id} was started before")
        self._builds.check_free(build)
        build.change("building")
        try:
            shelf = await Shelf.of(visit.client)
            build.plan = self._plan(build, body, self._base(body, shelf))
            build.displaced = displaced(shelf, build.stem, build.tags)
            begun = await self._begun(visit, build, build.plan)
        except BaseException:
            build.change("waiting")
            raise
        self._tasks.spawn(follow(visit.client, build, begun))
        await request.answer_bytes(b"", "application/json", 202)

    def _base(self, body: bodies.StartBuild, shelf: Shelf) -> Base:
        if (body.from_image is None) == (body.from_template is None):
            raise refused("fromImage", "give exactly one of it and fromTemplate")
        named = body.from_image or body.from_template or ""
        mapped = self._house.options.image_of(named)
        if mapped is not None:
            return Base(mapped)
        if body.from_image is not None:
            if named.startswith("e2bdev/"):
                raise refused(
                    "fromImage",
                    f"{named!r} is an image of E2B's own; the operator may say what stands for it: "
                    "base_image or images in [doors.e2b]",
                )
            return Base(named)
        own = shelf.meant(named)
        if own is None:
            raise refused(
                "fromTemplate", f"template '{named}' not found among those that you have built"
            )
        facts = BuiltFacts.of(own)
        user = facts.user or str(own.get("user") or "root")
        return Base(str(own["name"]), facts.model_copy(update={"user": user}))

    def _plan(self, build: Build, body: bodies.StartBuild, base: Base) -> Plan:
        said = {"start": body.start_cmd or None, "ready": body.ready_cmd or None}
        facts = build.asked.model_copy(update=said)
        made = translation.plan(
            base, body.steps, facts, secrets.token_hex(8), force=bool(body.force)
        )
        if len(made.dockerfile.encode()) > _MOST_BODY:
            raise refused("steps", "they are too long")
        return made

    async def _begun(self, visit: Visit, build: Build, plan: Plan) -> Json:
        body = {
            "name": of_build(build.stem, build.id),
            "tags": list(build.tags),
            "dockerfile": plan.dockerfile,
            "network": self._network(),
            "keeps_env": self._house.options.template_env,
        }
        with ExitStack() as held:
            folder = held.enter_context(self._house.uploads.lent(build.tenant, plan.files))
            if folder is None:
                ask = Ask("POST", "/templates", body=body, is_held=True)
            else:
                media, content = form_of(body, folder)
                ask = Ask("POST", "/templates", content=content, media=media, is_held=True)
            return await visit.client.transport.json(ask)

    def _network(self) -> str:
        """Return where steps may connect to: as far as the operator permits."""
        settings = self._house.state.engine.settings
        if settings.network == "open":
            return "open"
        return "packages" if settings.packages else "none"

    # -- polled ----------------------------------------------------------------------------

    async def status(self, visit: Visit) -> None:
        """`GET /templates/{id}/builds/{build}/status`."""
        request = visit.request
        query = pages.query_of(request, "logsOffset")
        offset, limit = _number(query, "logsOffset", 0), _number(query, "limit", 100)
        stem, build_id = request.params["template_id"], request.params["build_id"]
        try:
            shown = self._builds.get(request.owner, stem, build_id).as_json(offset, limit)
        except HttpError:
            if build_id not in (await Shelf.of(visit.client)).builds(stem):
                raise
            shown = done_before(stem, build_id)
        await self._house.answer(request, shown)

    # -- tags ------------------------------------------------------------------------------

    async def assign_tags(self, visit: Visit) -> None:
        """`POST /templates/tags`: a build without steps, whose image is that of the target."""
        body = await read(visit.request, bodies.AssignTags)
        name = self._own_name(body.target)
        tags = [checked_tag(each) for each in body.tags]
        shelf = await Shelf.of(visit.client)
        own = shelf.meant(body.target)
        if own is None:
            raise _no_tag(name)
        asked: dict[str, Any] = {
            "name": f"{name.stem}:{tags[0]}",
            "tags": tags[1:],
            "dockerfile": f"FROM {own['name']}\n",
            "wait": 60,
        }
        ended = await visit.client.transport.json(Ask("POST", "/templates", body=asked))
        if ended["status"] != "built":
            said = (ended["error"] or {}).get("message", "it takes too long")
            raise HttpError(500, "internal", f"tags: they could not be assigned: {said}")
        shown = {"tags": tags, "buildID": shelf.build_of(own)}
        await self._house.answer(visit.request, shown, 201)

    async def remove_tags(self, visit: Visit) -> None:
        """`DELETE /templates/tags`; the builds stay."""
        body = await read(visit.request, bodies.RemoveTags)
        name = called(body.name)
        tags = [checked_tag(each) for each in body.tags]
        shelf = await Shelf.of(visit.client)
        there = {tag for tag, _ in shelf.tags(name.stem)}
        for tag in tags:
            if tag not in there:
                raise _no_tag(Called(name.stem, tag))
        for tag in tags:
            await visit.client.templates.remove(f"{name.stem}:{tag}")
        await visit.request.answer_bytes(b"", "application/json", 204)


def _check_manages(visit: Visit) -> None:
    """Raise the 403 that the server's own route would raise at the end."""
    caller = visit.request.caller
    if not caller.may("manage"):
        raise HttpError(
            403,
            "forbidden",
            f"key: its scope is {caller.scope}, manage is needed to build templates",
            remedy="use another key",
        )


def _number(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise refused(name, "it is no number")
    return int(text)


def _no_tag(name: Called) -> Exception:
    tag = name.tag or DEFAULT_TAG
    return missing(f"tag '{tag[:100]}' does not exist for template '{name.stem[:100]}'")
