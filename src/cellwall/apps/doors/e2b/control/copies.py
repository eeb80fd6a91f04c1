"""Forks and snapshots of sandboxes.

A copy carries what the sandbox's runtime carries: its files and its session in Python, or every
process. The invariant: a copy that was made and cannot be given to its client is destroyed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.door import Route
from cellwall.apps.doors.e2b.answers import empty, missing, refused
from cellwall.apps.doors.e2b.control import bodies, pages
from cellwall.apps.doors.e2b.control.creating import TIMEOUT_S
from cellwall.apps.doors.e2b.control.finding import existing
from cellwall.apps.doors.e2b.control.snapshot_names import Called, found, kept_name, plain_name
from cellwall.apps.doors.e2b.control.templates import ONE
from cellwall.apps.doors.e2b.deadlines import prolong
from cellwall.apps.doors.e2b.templates.names import Shelf
from cellwall.model.errors import CellwallError
from cellwall.model.snapshot import MOST_EXPIRES_S
from cellwall.server.core.errors import status_of

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.control.creating import Creating
    from cellwall.apps.doors.e2b.house import House
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.model.snapshot import Fork
    from cellwall.server.core.request import Request


class Copies:
    """The routes."""

    def __init__(self, house: House, creating: Creating) -> None:
        self._house = house
        self._creating = creating
        self.routes = (
            Route("POST", "/sandboxes/{sandbox_id}/fork", self.fork),
            Route("POST", "/sandboxes/{sandbox_id}/snapshots", self.snapshot),
            Route("GET", "/snapshots", self.index),
            Route("DELETE", ONE, self.remove),
        )

    async def fork(self, visit: Visit) -> None:
        """`POST /sandboxes/{id}/fork`."""
        request = visit.request
        body = await bodies.read(request, bodies.Fork)
        life_s = body.timeout or TIMEOUT_S
        self._creating.check_life(life_s)
        sandbox = await existing(visit, is_running=True)
        forks = await sandbox.fork(body.count or 1)
        shown = [await self._shown(request, each, life_s) for each in forks]
        await self._house.answer(request, shown, 201)

    async def _shown(
        self, request: Request, fork: Fork[AsyncSandbox], life_s: float
    ) -> dict[str, Any]:
        if fork.made is None:
            return {"error": _fault(fork.error or CellwallError("fork: there is no copy"))}
        try:
            await prolong(fork.made, life_s, self._creating.most_s)
        except CellwallError as error:
            await fork.made.close()
            return {"error": _fault(error)}
        return {"sandbox": self._house.shown(request, fork.made)}

    async def snapshot(self, visit: Visit) -> None:
        """`POST /sandboxes/{id}/snapshots`: kept as long as this server keeps any."""
        request = visit.request
        body = await bodies.read(request, bodies.NewSnapshot)
        if body.memory is False:
            raise refused("memory", "a snapshot of the files alone is not to be had")
        sandbox = await existing(visit, is_running=True)
        name = kept_name(sandbox.id, body.name)
        made = await sandbox.snapshot(name, expires_s=MOST_EXPIRES_S)
        await self._house.answer(request, Called.of(made).as_json(), 201)

    async def index(self, visit: Visit) -> None:
        """`GET /snapshots`, newest first."""
        request = visit.request
        query = pages.query_of(request, "sandboxID", "name")
        called = [Called.of(each) for each in await visit.client.snapshots.list()]
        name = plain_name(query.get("name", ""))
        mine = [
            each
            for each in called
            if query.get("sandboxID") in {None, each.sandbox_id}
            and (not name or each.is_called(name))
        ]
        page, more = pages.page(
            mine,
            lambda each: (each.snapshot.created_at, each.snapshot.id),
            pages.Wanted.of(query),
        )
        await self._house.answer(request, [each.as_json() for each in page], 200, more)

    async def remove(self, visit: Visit) -> None:
        """`DELETE /templates/{id}`: of a snapshot, or of a template that the tenant has built."""
        request = visit.request
        name = request.params["template_id"]
        snapshot = await found(visit.client, name)
        if snapshot is not None:
            await visit.client.snapshots.delete(snapshot.id)
        else:
            await self._remove_template(visit, name)
        await empty(request)

    async def _remove_template(self, visit: Visit, name: str) -> None:
        """Remove a template with all its builds, or the one build or tag that is named."""
        shelf = await Shelf.of(visit.client)
        one, whole = shelf.meant(name), shelf.of_stem(name)
        found = whole or ([] if one is None else [one])
        if not found:
            raise missing(f"template '{name[:100]}' not found")
        for each in found:
            await visit.client.templates.remove(str(each["name"]))


def _fault(error: CellwallError) -> dict[str, Any]:
    return {"code": status_of(error), "message": str(error)}
