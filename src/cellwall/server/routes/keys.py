"""Routes of the API keys of every tenant, for keys of scope `admin`.

Keys are checked by `server.auth.keys`. The invariant: a key in clear is in the answer that made it
and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.model.errors import Conflict
from cellwall.server.auth.key_facts import configured, shown
from cellwall.server.auth.stored_keys import create as create_key
from cellwall.server.auth.stored_keys import revoke as revoke_key
from cellwall.server.http.endpoint import Answer, Endpoint, body_of
from cellwall.server.schemas import responses, responses_about
from cellwall.server.schemas.requests import KeyBody

if TYPE_CHECKING:
    from cellwall.server.auth.stored_keys import StoredKeys
    from cellwall.server.core.request import Request
    from cellwall.store.records.rows import KeyRow
    from cellwall.store.store import Store


async def create(request: Request) -> None:
    """`POST /keys`."""
    body = await body_of(request, KeyBody)
    store, stored = _kept(request)
    row, key = await create_key(store, body.tenant, body.scope, body.name, body.expires_s)
    await stored.refresh()
    await request.answer({**_shown(row), "key": key}, 201, {"cache-control": "no-store"})


async def index(request: Request) -> None:
    """`GET /keys`."""
    store = request.state.store
    rows = [] if store is None else await store.keys()
    found = [configured(each) for each in request.state.keys.fixed]
    await request.answer({"keys": found + [_shown(row) for row in rows]})


async def revoke(request: Request) -> None:
    """`DELETE /keys/{id}`."""
    key_id = request.params["key_id"]
    if any(each.key_id == key_id for each in request.state.keys.fixed):
        raise Conflict(
            f"key {key_id}: it is in the configuration",
            remedy="remove it there, and start the server again",
        )
    store, stored = _kept(request)
    row = await revoke_key(store, key_id)
    await stored.refresh()
    message = "revoked" if row.revoked_at is None else "it had been revoked"
    await request.answer({"message": message, "id": key_id})


def _kept(request: Request) -> tuple[Store, StoredKeys]:
    store, stored = request.state.store, request.state.stored_keys
    if store is None or stored is None:
        raise Conflict(
            "keys: this server keeps nothing", remedy="start it with a store, or configure the keys"
        )
    return store, stored


def _shown(row: KeyRow) -> dict[str, Any]:
    return {**shown(row), "source": "store"}


ENDPOINTS = (
    Endpoint(
        "GET",
        "/keys",
        index,
        "The API keys of all tenants, without the keys themselves",
        {200: Answer("All of them.", responses_about.Keys)},
        scope="admin",
        tags=("keys",),
    ),
    Endpoint(
        "POST",
        "/keys",
        create,
        "Make an API key; it is shown this once",
        {201: Answer("It is accepted from now on.", responses_about.NewKey)},
        body=KeyBody,
        scope="admin",
        tags=("keys",),
    ),
    Endpoint(
        "DELETE",
        "/keys/{key_id}",
        revoke,
        "Revoke an API key, at once",
        {200: Answer("It is no longer accepted.", responses.Done)},
        scope="admin",
        tags=("keys",),
    ),
)
