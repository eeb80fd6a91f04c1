"""Templates: what a name stands for, and what there is. Templates are not built through this door.

A client asks by a name whether a template exists, and by its tags whether it was built; both say no
of a name that this server does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.door import Route
from cellwall.apps.doors.e2b.answers import missing, unsupported
from cellwall.apps.doors.e2b.control import pages
from cellwall.apps.doors.e2b.facts import ENVD_VERSION
from cellwall.client.connection.transport import Ask
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.house import House

ONE = "/templates/{template_id:path}"
"""Path of one template, or of a snapshot, whose name may be anything. It fits every longer path of
`/templates`, too, so those have to come before it."""
_NO_BUILD = "00000000-0000-0000-0000-000000000000"
"""Id of the build of a template that the operator has."""


class Templates:
    """The routes."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.routes = (
            Route("GET", "/templates/aliases/{name:path}", self.alias),
            Route("GET", "/templates/{template_id}/tags", self.tags),
            Route("GET", "/templates", self.index),
            Route("GET", "/v2/templates", self.index),
        )

    async def alias(self, visit: Visit) -> None:
        """`GET /templates/aliases/{name}`."""
        name = visit.request.params["name"]
        if name not in await self._names(visit):
            raise missing(f"template alias '{name[:100]}' not found")
        await self._house.answer(visit.request, {"templateID": name, "public": False})

    async def tags(self, visit: Visit) -> None:
        """`GET /templates/{name}/tags`: none has any, because none was built here."""
        name = visit.request.params["template_id"]
        if name not in await self._names(visit):
            raise missing(f"template '{name[:100]}' not found")
        await self._house.answer(visit.request, [])

    async def index(self, visit: Visit) -> None:
        """`GET /templates`."""
        pages.query_of(visit.request, "teamID")
        names = await self._names(visit)
        await self._house.answer(visit.request, [self._shown(each) for each in sorted(names)])

    def _shown(self, name: str) -> dict[str, Any]:
        limits = self._house.state.engine.settings.limits
        since = rfc3339(self._house.state.began_at)
        return {
            "templateID": name,
            "buildID": _NO_BUILD,
            "cpuCount": max(1, round(limits.cpus)),
            "memoryMB": limits.memory_mb,
            "diskSizeMB": limits.disk_mb,
            "public": False,
            "aliases": [name],
            "names": [name],
            "createdAt": since,
            "updatedAt": since,
            "createdBy": None,
            "lastSpawnedAt": None,
            "spawnCount": 0,
            "buildCount": 1,
            "envdVersion": ENVD_VERSION,
            "buildStatus": "ready",
        }

    async def _names(self, visit: Visit) -> set[str]:
        """Return the names by which the caller can create a sandbox."""
        found = await visit.client.transport.json(Ask("GET", "/templates"))
        built = {each["name"] for each in found["templates"] if each["built"]}
        own = own_names(found)
        known = self._house.options.templates
        return built | own | {name for name, meant in known.items() if meant in built | own}


def own_names(found: Mapping[str, Any]) -> set[str]:
    """Return the names of the templates that the tenant has built, from our list of templates."""
    own = {str(each["name"]) for each in found["own"]}
    return own | {name.removesuffix(":latest") for name in own}


_ABSENT = (
    ("POST", "/v3/templates", "building of templates"),
    ("POST", "/v2/templates", "building of templates"),
    ("POST", "/templates", "building of templates"),
    ("POST", "/v2/templates/{template_id}/builds/{build_id}", "building of templates"),
    ("GET", "/templates/{template_id}/files/{digest}", "building of templates"),
    ("GET", "/templates/{template_id}/builds/{build_id}/status", "building of templates"),
    ("POST", "/templates/tags", "tags of templates"),
    ("DELETE", "/templates/tags", "tags of templates"),
    ("GET", ONE, "builds of templates"),
    ("PATCH", ONE, "changing of templates"),
    ("PATCH", "/v2/templates/{template_id}", "changing of templates"),
    ("*", "/volumes", "volumes"),
    ("*", "/volumes/{path:path}", "volumes"),
    ("*", "/secrets", "secrets"),
    ("*", "/secrets/{path:path}", "secrets"),
    ("GET", "/sandboxes/metrics", "metrics of several sandboxes"),
    ("GET", "/sandboxes/{sandbox_id}/logs", "logs of sandboxes"),
    ("GET", "/v2/sandboxes/{sandbox_id}/logs", "logs of sandboxes"),
    ("*", "/teams", "teams"),
    ("*", "/teams/{path:path}", "teams"),
)
"""Operations of E2B's that this server does not have."""


def absent_routes() -> list[Route]:
    """Return routes that say of each operation that it is not to be had."""

    def route(method: str, path: str, what: str) -> Route:
        async def refuse(_: Visit) -> None:
            raise unsupported(what)

        return Route(method, path, refuse)

    return [route(*each) for each in _ABSENT]
