"""Sandboxes that exist: shown, listed, ended, prolonged, paused, measured.

The invariant: a sandbox that has ended is not found, as one that never was.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from cellwall.apps.doors.door import Route
from cellwall.apps.doors.e2b import facts
from cellwall.apps.doors.e2b.answers import empty, refused
from cellwall.apps.doors.e2b.control import bodies, networks, pages
from cellwall.apps.doors.e2b.control.creating import TIMEOUT_S
from cellwall.apps.doors.e2b.control.finding import existing
from cellwall.apps.doors.e2b.deadlines import ends_at, prolong
from cellwall.model.errors import CapacityError, Conflict
from cellwall.server.core.errors import HttpError
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.control.creating import Creating
    from cellwall.apps.doors.e2b.house import House
    from cellwall.client.sandbox import AsyncSandbox

_STATES = frozenset({"running", "paused"})
_MILLISECONDS = 1e11
"""Times above this are of older clients, which send milliseconds."""
_MOST_READINGS = 4096
_PASSES_S = 1.0
"""Seconds after which a client may ask again for what a passing state forbade."""


class Lives:
    """The routes."""

    def __init__(self, house: House, creating: Creating) -> None:
        self._house = house
        self._creating = creating
        self._readings: OrderedDict[str, tuple[float, float]] = OrderedDict()
        one = "/sandboxes/{sandbox_id}"
        self.routes = (
            Route("GET", "/v2/sandboxes", self.index),
            Route("GET", "/sandboxes", self.index),
            Route("GET", one, self.get),
            Route("DELETE", one, self.kill),
            Route("POST", f"{one}/timeout", self.timeout),
            Route("POST", f"{one}/refreshes", self.refresh),
            Route("POST", f"{one}/pause", self.pause),
            Route("GET", f"{one}/metrics", self.metrics),
            Route("PUT", f"{one}/network", networks.update),
        )

    # -- looked at -------------------------------------------------------------------------

    async def get(self, visit: Visit) -> None:
        """`GET /sandboxes/{id}`."""
        sandbox = await existing(visit)
        access = self._house.access(visit.request, sandbox)
        del access["trafficAccessToken"]
        await self._house.answer(visit.request, {**facts.detail(sandbox), **access})

    async def index(self, visit: Visit) -> None:
        """`GET /v2/sandboxes`, newest first, and `/sandboxes`, of running ones alone."""
        request = visit.request
        query = pages.query_of(request, "metadata", "state", "startedAfter", "template")
        is_old = not request.scope["path"].endswith("/v2/sandboxes")
        states = _states(query.get("state"), {"running"} if is_old else _STATES)
        wanted = pages.Wanted.of(query)
        is_meant = _filter(query)
        found = [
            each
            for each in await visit.client.sandboxes(state="live")
            if facts.state_of(each.status) in states and is_meant(each)
        ]
        page, more = pages.page(found, lambda each: (each.created_at, each.id), wanted)
        await self._house.answer(request, [facts.listed(each) for each in page], 200, more)

    async def metrics(self, visit: Visit) -> None:
        """`GET /sandboxes/{id}/metrics`: how it is now, if now is asked for."""
        query = pages.query_of(visit.request, "start", "end")
        start, end = _moment(query, "start", 0.0), _moment(query, "end", float("inf"))
        sandbox = await existing(visit)
        now = time.time()
        is_now = start <= now and end >= int(now) and sandbox.status == "running"
        shown = [await self._measured(sandbox, now)] if is_now else []
        await self._house.answer(visit.request, shown)

    async def _measured(self, sandbox: AsyncSandbox, now: float) -> dict[str, Any]:
        numbers, limits = await sandbox.metrics(), sandbox.limits
        total = limits.disk_mb * 1024 * 1024
        return {
            "timestamp": rfc3339(now),
            "timestampUnix": int(now),
            "cpuCount": facts.cpus(sandbox),
            "cpuUsedPct": self._cpu_used(sandbox, numbers["cpu_s"], now),
            "memUsed": numbers["memory_bytes"],
            "memTotal": limits.memory_bytes,
            "memCache": 0,
            "diskUsed": await _disk_used(sandbox),
            "diskTotal": total,
        }

    def _cpu_used(self, sandbox: AsyncSandbox, cpu_s: float, now: float) -> float:
        """Return the use since the last reading, or since the creation, in per cent of one CPU."""
        before, at = self._readings.pop(sandbox.id, (0.0, sandbox.created_at))
        self._readings[sandbox.id] = cpu_s, now
        if len(self._readings) > _MOST_READINGS:
            self._readings.popitem(last=False)
        return round(100 * max(0.0, cpu_s - before) / max(0.001, now - at), 2)

    # -- changed ---------------------------------------------------------------------------

    async def kill(self, visit: Visit) -> None:
        """`DELETE /sandboxes/{id}`."""
        await (await existing(visit)).close()
        await empty(visit.request)

    async def timeout(self, visit: Visit) -> None:
        """`POST /sandboxes/{id}/timeout`: the rest of its life, from now; 0 ends or pauses it."""
        body = await bodies.read(visit.request, bodies.Timeout)
        self._creating.check_life(body.timeout)
        sandbox = await existing(visit, is_running=True)
        if body.timeout or facts.Facts.of(sandbox).pause_at is not None:
            await prolong(sandbox, body.timeout, self._creating.most_s)
        else:
            await sandbox.close()
        await empty(visit.request)

    async def refresh(self, visit: Visit) -> None:
        """`POST /sandboxes/{id}/refreshes`: at least so long from now."""
        body = await bodies.read(visit.request, bodies.Refresh)
        life_s = TIMEOUT_S if body.duration is None else body.duration
        self._creating.check_life(life_s)
        sandbox = await existing(visit, is_running=True)
        if ends_at(sandbox) < time.time() + life_s:
            await prolong(sandbox, life_s, self._creating.most_s)
        await empty(visit.request)

    async def pause(self, visit: Visit) -> None:
        """`POST /sandboxes/{id}/pause`. Only "it is paused" is 409: clients take it for success.

        What passes by itself is 503 with `Retry-After`, as an operator's full server is.
        """
        body = await bodies.read(visit.request, bodies.Pause)
        sandbox = await existing(visit)
        if facts.state_of(sandbox.status) == "paused":
            raise HttpError(409, "conflict", f"Sandbox {sandbox.id} is already paused")
        try:
            if body.memory is False:
                await sandbox.hibernate(keep="files")
            else:
                await sandbox.pause()
        except Conflict as error:
            if error.is_passing:
                raise CapacityError(str(error), retry_after_s=_PASSES_S) from None
            raise HttpError(501, "unimplemented", str(error)) from None
        await empty(visit.request)


def _states(given: str | None, default: frozenset[str] | set[str]) -> frozenset[str] | set[str]:
    if not given:
        return default
    wanted = frozenset(given.split(","))
    if wanted - _STATES:
        raise refused("state", "give running, paused, or both")
    return wanted


def _filter(query: dict[str, str]) -> Callable[[AsyncSandbox], bool]:
    wanted = metadata_of(query.get("metadata", ""))
    started, template = query.get("startedAfter"), query.get("template")
    after = None if started is None else _time(started)

    def is_meant(sandbox: AsyncSandbox) -> bool:
        known = facts.Facts.of(sandbox)
        return (
            (after is None or sandbox.created_at >= after)
            and (template is None or known.template == template)
            and all(known.metadata.get(key) == value for key, value in wanted.items())
        )

    return is_meant


def metadata_of(text: str) -> dict[str, str]:
    """Return the filter in a query's `metadata`, decoded once: a query of what is quoted again."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise refused("metadata", "it has more than 64 names") from None
    return {unquote(key): unquote(value) for key, value in pairs}


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise refused("startedAfter", "it is no time of RFC 3339") from None
    if found.tzinfo is None:
        raise refused("startedAfter", "it has no time zone")
    return found.timestamp()


def _moment(query: dict[str, str], name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise refused(name, "give Unix seconds")
    found = float(text)
    return found / 1000 if found > _MILLISECONDS else found


async def _disk_used(sandbox: AsyncSandbox) -> int:
    """Return the bytes that the work area has taken, as the inside says."""
    done = await sandbox.commands.run(["df", "-B1", "--output=used", "."], timeout=5)
    words = done.stdout.split()
    is_number = len(words) > 1 and words[-1].isascii() and words[-1].isdecimal()
    return int(words[-1][:18]) if is_number else 0
