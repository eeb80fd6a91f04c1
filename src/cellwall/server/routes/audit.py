"""Route of the audit, for keys of scope `admin`: the records are the server's, not a tenant's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cellwall.server.core.errors import HttpError
from cellwall.server.http.endpoint import Answer, Endpoint, query_of
from cellwall.server.schemas import responses
from cellwall.server.schemas.requests import LogQuery

if TYPE_CHECKING:
    from cellwall.server.core.request import Request


async def index(request: Request) -> None:
    """`GET /audit`, oldest first."""
    query = query_of(request, LogQuery)
    if request.state.store is None:
        raise HttpError(404, "not_found", "audit: none is kept", remedy="serve with a store")
    rows = await request.state.store.audit(query.after or 0, query.limit + 1)
    page = rows[: query.limit]
    records = [{**json.loads(row.record), "hash": row.hash.hex()} for row in page]
    more = page[-1].seq if len(rows) > query.limit else None
    await request.answer({"records": records, "next": more})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/audit",
        index,
        "Audit records of the whole server, oldest first",
        {200: Answer("A part of them.", responses.AuditPage)},
        query=LogQuery,
        scope="admin",
        tags=("server",),
    ),
)
