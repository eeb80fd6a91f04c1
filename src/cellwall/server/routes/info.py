"""Routes of information: the server's abilities and state, a sandbox's state; numbers and logs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.engine.policy.offers import offers
from cellwall.engine.templates.store import TemplateStore
from cellwall.languages.registry import LANGUAGES
from cellwall.languages.shown import shown
from cellwall.languages.tools import detect
from cellwall.server.http.endpoint import Answer, Endpoint, query_of, sandbox
from cellwall.server.schemas import responses, responses_about
from cellwall.server.schemas.requests import LogQuery

if TYPE_CHECKING:
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.state import State


async def metrics(request: Request) -> None:
    """`GET /sandboxes/{id}/metrics`."""
    record = sandbox(request)
    record.sandbox.live.check_alive()
    now = record.sandbox.live.readings()
    await request.answer(
        {
            "id": record.id,
            "status": record.sandbox.status,
            "cpu_s": round(now.cpu_s, 6),
            "memory_bytes": now.memory_bytes,
            "memory_peak_bytes": now.memory_peak_bytes,
            "processes_peak": now.processes_peak,
            "oom_kills": now.oom_kills,
            "disk_full": now.disk_full,
            "executions": record.executions,
            "commands": record.started,
        }
    )


async def logs(request: Request) -> None:
    """`GET /sandboxes/{id}/logs`."""
    query = query_of(request, LogQuery)
    records, more = sandbox(request).logs(query.after or 0, query.limit)
    await request.answer({"records": records, "next": more})


async def templates(request: Request) -> None:
    """`GET /templates`."""
    found = await asyncio.to_thread(_templates, TemplateStore(request.state.engine.state_dir))
    own = await request.state.templates.found(request.owner)
    await request.answer({"templates": found, "own": own})


def _templates(store: TemplateStore) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "description": each.description,
            "packages": list(each.packages),
            "preload": list(each.preload),
            "languages": list(each.languages),
            "built": store.find(each.name) is not None,
        }
        for each in store.definitions().values()
    ]


async def languages(request: Request) -> None:
    """`GET /languages`."""
    await request.answer({"languages": await asyncio.to_thread(_languages)})


def _languages() -> list[dict[str, Any]]:
    return [shown(each, detect(each)) for each in LANGUAGES.values()]


async def runtimes(request: Request) -> None:
    """`GET /runtimes`."""
    floor = request.state.queue.tenants.floor(request.owner)
    found = await offers(request.state.engine, floor, shows_starts=request.caller.may("manage"))
    await request.answer({"runtimes": [each.as_json() for each in found]})


async def stats(request: Request) -> None:
    """`GET /stats`."""
    state, owner = request.state, request.owner
    mine = [r for r in state.sandboxes.all.values() if r.owner == owner and r.ended_at is None]
    await request.answer(
        {
            "version": cellwall.__version__,
            "uptime_s": round(time.time() - state.began_at, 3),
            "sandboxes": len(mine),
            "snapshots": len(state.engine.copies.snapshots(owner)),
            "executions": sum(r.owner == owner for r in state.executions.all.values()),
            "server": _server(state, request.caller) if request.caller.may("manage") else None,
        }
    )


def _server(state: State, caller: Principal) -> dict[str, Any]:
    engine = state.engine.statistics()
    queue = state.queue
    return {
        "requests": state.requests,
        "runs": engine.runs,
        "running": queue.running,
        "queued": queue.queued,
        "sandboxes": engine.sandboxes,
        "paused": engine.paused,
        "hibernated": engine.hibernated,
        "hibernated_bytes": engine.hibernated_bytes,
        "background_failures": engine.background_failures + state.tasks.failed,
        "pool": asdict(engine.pool),
        "copies": asdict(engine.copies),
        "promises": queue.machine.as_json(),
        "tenants": queue.tenants.all_json() if caller.may("admin") else None,
    }


ENDPOINTS = (
    Endpoint(
        "GET",
        "/sandboxes/{sandbox_id}/metrics",
        metrics,
        "A sandbox's counters, from the kernel",
        {200: Answer("The counters.", responses.Metrics)},
        tags=("sandboxes",),
    ),
    Endpoint(
        "GET",
        "/sandboxes/{sandbox_id}/logs",
        logs,
        "What happened to a sandbox",
        {200: Answer("A part of its log.", responses.Logs)},
        query=LogQuery,
        tags=("sandboxes",),
    ),
    Endpoint(
        "GET",
        "/templates",
        templates,
        "The templates there are",
        {200: Answer("All of them.", responses_about.Templates)},
        tags=("server",),
    ),
    Endpoint(
        "GET",
        "/languages",
        languages,
        "The languages there are",
        {200: Answer("All of them.", responses_about.Languages)},
        tags=("server",),
    ),
    Endpoint(
        "GET",
        "/runtimes",
        runtimes,
        "The isolation technologies of this server",
        {200: Answer("All of them, and which may serve you.", responses_about.Runtimes)},
        tags=("server",),
    ),
    Endpoint(
        "GET",
        "/stats",
        stats,
        "Numbers of the server and of your own things",
        {200: Answer("Now.", responses_about.Stats)},
        tags=("server",),
    ),
)
