"""Routes of a tenant's secrets, for keys of scope `manage`: set, listed without values, removed.

The invariant: a value is in the body that sets it and in no answer, record or log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.errors import Conflict
from cellwall.model.secret import PLACES, Secret
from cellwall.server.http import audited_actions
from cellwall.server.http.endpoint import SMALL_BYTES, Answer, Endpoint, parsed
from cellwall.server.schemas import responses, responses_about
from cellwall.server.schemas.requests import SecretBody
from cellwall.server.secrets.vault import shown

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.secrets.vault import Vault


async def index(request: Request) -> None:
    """`GET /secrets`."""
    await request.answer({"secrets": await _vault(request).names(request.owner)})


async def put(request: Request) -> None:
    """`PUT /secrets/{name}`."""
    request.check_type("application/json")
    body = parsed(SecretBody, await request.body(SMALL_BYTES))
    request.state.observer.redactor.learn_all([body.value], request.owner)
    # SECURITY: without the body, whose digest would let a short value be guessed.
    await audited_actions.begin(request, body)
    places = PLACES if body.places is None else body.places
    secret = Secret(request.params["name"], body.value, hosts=body.hosts, places=places)
    await request.answer(shown(await _vault(request).put(request.owner, secret)))


async def remove(request: Request) -> None:
    """`DELETE /secrets/{name}`."""
    name = request.params["name"]
    await _vault(request).remove(request.owner, name)
    await request.answer({"message": "removed", "id": name})


def _vault(request: Request) -> Vault:
    vault: Vault | None = request.state.vault
    if vault is None:
        raise Conflict("secrets: this server keeps nothing", remedy="start it with a store")
    return vault


ENDPOINTS = (
    Endpoint(
        "GET",
        "/secrets",
        index,
        "The tenant's secrets, without their values",
        {200: Answer("All of them, by name.", responses_about.Secrets)},
        scope="manage",
        tags=("secrets",),
    ),
    Endpoint(
        "PUT",
        "/secrets/{name}",
        put,
        "Set a secret; its value is never shown again",
        {
            200: Answer(
                "Sandboxes that are made from now on get this value.", responses_about.Secret
            )
        },
        body=SecretBody,
        scope="manage",
        tags=("secrets",),
    ),
    Endpoint(
        "DELETE",
        "/secrets/{name}",
        remove,
        "Remove a secret",
        {200: Answer("No new sandbox gets it.", responses.Done)},
        scope="manage",
        tags=("secrets",),
    ),
)
