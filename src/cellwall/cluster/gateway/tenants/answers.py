"""The routes of keys, secrets and audit at a gateway, with the bodies and answers of a server's.

A server's routes are `server.routes.keys`, `secrets` and `audit`. The invariant: a key in clear is
in the answer that made it, a secret's value in the body that set it, and neither in an error, a
record or a log.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from cellwall.cluster.gateway.tenants.lending import without_directory
from cellwall.cluster.gateway.tenants.vault import SECRET_NAME, facts_of
from cellwall.cluster.gateway.wire.json_body import object_of
from cellwall.model.errors import NotFound, UsageError
from cellwall.model.secret import PLACES, Secret
from cellwall.server.auth.key_facts import configured, fresh
from cellwall.server.core.errors import HttpError, wrong_method

if TYPE_CHECKING:
    from cellwall.cluster.gateway.tenants.asked import Asked
    from cellwall.cluster.gateway.tenants.lending import Keeps

Answer = tuple[int, dict[str, Any]]
"""Status and body."""
_KEY_ID = re.compile(r"[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9]{1,15}")
_PAGE, _LONGEST_PAGE = 100, 1000
"""Records of the audit in one answer."""
_NONE = type(None)
_KEY: Mapping[str, tuple[type, ...]] = {
    "tenant": (str,),
    "scope": (str,),
    "name": (str, _NONE),
    "expires_s": (int, float, _NONE),
}
_SECRET: Mapping[str, tuple[type, ...]] = {
    "value": (str,),
    "hosts": (list,),
    "places": (list, _NONE),
}


async def answer_to(asked: Asked) -> Answer:
    """Do what is asked, and return the answer. Raises HttpError, and what the parts raise."""
    method = asked.head.method.decode("latin-1")
    routes = _ROUTES[asked.way.thing, bool(asked.way.name)]
    route = routes.get("GET" if method == "HEAD" else method)
    if route is None:
        raise wrong_method(method, routes)
    if b"?" in asked.head.target and asked.way.thing != "audit":
        raise UsageError("query: this path takes none", remedy="see /docs for the fields")
    return await route(asked)


# -- keys --------------------------------------------------------------------------------------


async def _keys(asked: Asked) -> Answer:
    keeps = asked.gateway.keeps
    rows = [] if keeps is None else await keeps.keys.listed()
    return 200, {"keys": [*map(configured, asked.gateway.keyring.fixed), *rows]}


async def _create_key(asked: Asked) -> Answer:
    body = _body(asked, _KEY, needed=("tenant",))
    life_s = body.get("expires_s")
    made = fresh(body["tenant"], body.get("scope", "run"), body.get("name"), life_s)
    keeps = _keeps(asked, "keys")
    facts = {
        "tenant": made.record.tenant,
        "scope": made.record.scope,
        "name": made.name,
        "expires_s": life_s,
    }
    await _note(asked, "key.create", f"key:{made.record.key_id}", facts)
    return 201, await keeps.keys.create(made)


async def _revoke_key(asked: Asked) -> Answer:
    keeps, key_id = _keeps(asked, "keys"), _named(asked, _KEY_ID, "key", "list them: GET /keys")
    await _note(asked, "key.revoke", f"key:{key_id}", {})
    is_new = await keeps.keys.revoke(key_id)
    return 200, {"message": "revoked" if is_new else "it had been revoked", "id": key_id}


# -- secrets -----------------------------------------------------------------------------------


async def _secrets(asked: Asked) -> Answer:
    keeps = _keeps(asked, "secrets")
    return 200, {"secrets": await keeps.vault.names(asked.caller.principal.tenant)}


async def _put_secret(asked: Asked) -> Answer:
    body = _body(asked, _SECRET, needed=("value", "hosts"))
    places = body.get("places")
    secret = Secret(
        unquote(asked.way.name),
        body["value"],
        hosts=body["hosts"],
        places=PLACES if places is None else places,
    )
    keeps = _keeps(asked, "secrets")
    keeps.vault.check()
    await _note(asked, "secret.set", f"secret:{secret.name}", facts_of(secret))
    return 200, await keeps.vault.put(asked.caller.principal.tenant, secret)


async def _remove_secret(asked: Asked) -> Answer:
    keeps = _keeps(asked, "secrets")
    name = _named(asked, SECRET_NAME, "secret", "list them: GET /secrets")
    await _note(asked, "secret.remove", f"secret:{name}", {})
    await keeps.vault.remove(asked.caller.principal.tenant, name)
    return 200, {"message": "removed", "id": name}


# -- webhooks ----------------------------------------------------------------------------------


async def _webhooks(asked: Asked) -> Answer:
    background = asked.gateway.background
    if background is None:
        raise without_directory("webhooks")
    return 200, background.hooks.shown(asked.caller.principal.tenant)


# -- the gateway's own audit -------------------------------------------------------------------


async def _audit(asked: Asked) -> Answer:
    trail = asked.gateway.trail
    if trail is None:
        raise HttpError(
            404,
            "not_found",
            "audit: this gateway keeps none",
            remedy="name a store for it in [gateway] audit; nodes' records are in their stores",
        )
    query = _query(asked.head.target.partition(b"?")[2].decode("latin-1"))
    after, limit = query.get("after", 0), query.get("limit", _PAGE)
    if not 1 <= limit <= _LONGEST_PAGE:
        raise UsageError(f"query: limit: it is 1 to {_LONGEST_PAGE}", remedy="ask for less")
    return 200, await trail.page(after, limit)


def _query(text: str) -> dict[str, int]:
    """Return a query's numbers by name. Raises UsageError."""
    found: dict[str, int] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in {"after", "limit"} or name in found:
            raise UsageError(
                f"query: {name[:40]!r} is not known, or comes twice", remedy="see /docs"
            )
        if not _NUMBER.fullmatch(value):
            raise UsageError(f"query: {name}: it is no number", remedy="give digits")
        found[name] = int(value)
    return found


_ROUTES: Mapping[tuple[str, bool], Mapping[str, Callable[[Asked], Awaitable[Answer]]]] = {
    ("key", False): {"GET": _keys, "POST": _create_key},
    ("key", True): {"DELETE": _revoke_key},
    ("secret", False): {"GET": _secrets},
    ("audit", False): {"GET": _audit},
    ("webhooks", False): {"GET": _webhooks},
    ("secret", True): {"PUT": _put_secret, "DELETE": _remove_secret},
}
"""By what a path is about, and whether it names one of them."""


def _keeps(asked: Asked, what: str) -> Keeps:
    if asked.gateway.keeps is None:
        raise without_directory(what)
    return asked.gateway.keeps


def _named(asked: Asked, form: re.Pattern[str], kind: str, remedy: str) -> str:
    """Return what a path names. Raises NotFound for what can be the name of none."""
    name = unquote(asked.way.name)
    if not form.fullmatch(name):
        raise NotFound(f"{kind} {name[:64]!r}: there is none", remedy=remedy)
    return name


async def _note(asked: Asked, action: str, subject: str, facts: dict[str, Any]) -> None:
    """Write a change to the gateway's audit, if there is one, before it is made."""
    trail = asked.gateway.trail
    if trail is not None:
        who = (asked.caller, asked.client.peer, asked.request_id)
        await trail.changing(*who, action, subject, facts)


def _body(
    asked: Asked, fields: Mapping[str, tuple[type, ...]], needed: tuple[str, ...]
) -> dict[str, Any]:
    """Return a body's fields. Raises UsageError, which says no value."""
    kind = asked.head.first(b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(
            415,
            "content_type",
            f"body: Content-Type {kind[:80]!r} where application/json is needed",
            remedy="send Content-Type: application/json",
        )
    try:
        body = object_of(asked.body)
    except ValueError:
        raise _wrong("it is no JSON object, or has a name twice") from None
    for name, value in body.items():
        if name not in fields:
            raise _wrong(f"{name[:60]}: there is no such field")
        if not isinstance(value, fields[name]) or isinstance(value, bool):
            raise _wrong(f"{name}: its type is another")
    for name in needed:
        if name not in body:
            raise _wrong(f"{name}: it is missing")
    return body


def _wrong(what: str) -> UsageError:
    return UsageError(f"body: {what}", remedy="see /docs for the fields")
