"""Templates: what a name stands for, what there is, and which tags it has; `building` builds them.

A client asks by a name whether a template exists, and by its tags whether it was built; both say no
of a name that this server does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.door import Route
from cellwall.apps.doors.e2b.answers import missing, unsupported
from cellwall.apps.doors.e2b.control import pages
from cellwall.apps.doors.e2b.facts import ENVD_VERSION
from cellwall.apps.doors.e2b.templates.names import Shelf
from cellwall.client.connection.transport import Ask
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
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
        known, shelf = await self._names(visit)
        if name not in known and shelf.meant(name) is None:
            raise missing(f"template alias '{name[:100]}' not found")
        shown = {"templateID": name.partition(":")[0], "public": False}
        await self._house.answer(visit.request, shown)

    async def tags(self, visit: Visit) -> None:
        """`GET /templates/{name}/tags`; the operator's have none."""
        name = visit.request.params["template_id"]
        known, shelf = await self._names(visit)
        if name not in known:
            raise missing(f"template '{name[:100]}' not found")
        tags = [
            {"tag": tag, "buildID": shelf.build_of(own), "createdAt": own["built_at"]}
            for tag, own in shelf.tags(name)
        ]
        await self._house.answer(visit.request, tags)

    async def index(self, visit: Visit) -> None:
        """`GET /templates`."""
        pages.query_of(visit.request, "teamID")
        names, _ = await self._names(visit)
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

    async def _names(self, visit: Visit) -> tuple[set[str], Shelf]:
        """Return the names, without tags, that mean a template to the caller; and its own."""
        found = await visit.client.transport.json(Ask("GET", "/templates"))
        shelf = Shelf.parse(found["own"])
        names = {each["name"] for each in found["templates"] if each["built"]} | shelf.stems()
        known = self._house.options.templates
        return names | {name for name, meant in known.items() if meant in names}, shelf


_ABSENT = (
    ("POST", "/v2/templates", "building of templates by clients from before 2.6"),
    ("POST", "/templates", "building of templates by clients from before 2.6"),
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
