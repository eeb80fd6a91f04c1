"""Callers of the door: who sends a request, and which sandbox it is for.

The path says which plane is meant: the control plane takes a key, the planes of a sandbox a token
of it, a key of its tenant, or a signature in the address of a file. The invariant: a token or a
signature opens the one sandbox that it is of, whatever else the request names.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote

from cellwall.apps.doors.e2b.addressing import INTERPRETER_PORT, Place, place_of
from cellwall.apps.doors.e2b.answers import PLACE, REFUSAL, Gone, missing
from cellwall.apps.doors.e2b.facts import PUBLIC
from cellwall.apps.doors.e2b.tokens import Signed
from cellwall.apps.doors.e2b.uploads.links import PREFIX as UPLOADS
from cellwall.server.core.errors import HttpError
from cellwall.server.http.face import bearer_of

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.house import House
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find

_DAEMON = re.compile(r"/(files|envs)|/(process\.Process|filesystem\.Filesystem)/.*")
_INTERPRETER = re.compile(r"/execute|/contexts(/.*)?")
_HEALTH, _EXECUTE = "/health", "/execute"
INSIDE = "/traffic-to-the-inside"
"""Path of the route of all requests for servers inside. A client that sends it gets nowhere."""
SANDBOX_HEALTH = "/health-of-a-sandbox"
"""Path of the route of `/health` for a sandbox, which needs a key or a token; so does this."""
_TOKENS = ("x-access-token", "e2b-traffic-access-token")
_SAYS_SANDBOX = frozenset({"e2b-sandbox-id", "x-access-token"})
"""Headers with which `/health` is that of a sandbox, even if they name none."""
_DIGITS = re.compile(r"[0-9]{1,15}")


class Callers:
    """Finds the caller and the place of each request."""

    def __init__(self, house: House) -> None:
        self._house = house

    def of(self, request: Request, path: str, find: Find) -> Principal | None:
        """Return who asks; note the place of a request for a sandbox in its scope."""
        if path.startswith(UPLOADS):
            return self._uploader(request, path, find)
        place = place_of(request.headers, self._house.options.domain)
        if place is not None and place.is_by_host and not (place.is_inside or _is_of_plane(path)):
            # SECURITY: a token stands for its tenant, so it must not reach the control plane.
            raise missing("path: there is nothing below the name of a sandbox")
        if not is_of_sandbox(path, request, place):
            key = presented(request)
            return None if key is None else find(key)
        found = self._by_key(request, place, find) or self._holder(request, path, place)
        if found is None:
            self._note_wrong(request, find)
            if place is not None and place.is_inside and not _shows_anything(request):
                raise self._without_token(place)
            caller = None
        else:
            place, caller = found
        if place is not None:
            request.scope[PLACE] = place
            if place.is_inside:
                # Whatever its path: that is for the server inside, which gets it as it came.
                request.scope["raw_path"] = request.scope.get("raw_path") or quote(path).encode()
                request.scope["path"] = INSIDE
        if request.scope["path"] == _HEALTH:
            request.scope["path"] = SANDBOX_HEALTH
        return caller

    def _uploader(self, request: Request, path: str, find: Find) -> Principal | None:
        """Return who was given the address of an upload; a key beside it says nothing."""
        opened = self._house.links.opened(path)
        if opened is not None and not opened.is_expired:
            return opened.caller
        request.scope[REFUSAL] = "upload: the address opens nothing, or is expired; ask for another"
        find(path.removeprefix(UPLOADS))  # counts as a wrong key
        return None

    def _without_token(self, place: Place) -> HttpError:
        """Return what a port answers to a request that shows neither a token nor a key.

        Where ports may be public their visitors hear whether there is such a sandbox, elsewhere
        they hear the same of each.
        """
        record = self._house.state.sandboxes.all.get(place.sandbox_id)
        if self._house.options.public_ports and (record is None or record.ended_at is not None):
            return Gone(place.sandbox_id)
        return HttpError(
            403,
            "forbidden",
            "port: it needs the header E2B-Traffic-Access-Token, or a key",
            headers={"connection": "close"},
        )

    @staticmethod
    def _note_wrong(request: Request, find: Find) -> None:
        """Let a token that opens nothing count as a wrong key: its sender is no guest."""
        for name in _TOKENS:
            if name in request.headers:
                find(request.headers[name])

    def _by_key(
        self, request: Request, place: Place | None, find: Find
    ) -> tuple[Place, Principal] | None:
        key = presented(request)
        caller = None if key is None or place is None else find(key)
        return None if place is None or caller is None else (place, caller)

    def _holder(
        self, request: Request, path: str, place: Place | None
    ) -> tuple[Place, Principal] | None:
        """Return the sandbox and the caller whose token or signature the request has."""
        is_file = path == "/files" and not (place is not None and place.is_inside)
        found = self._by_token(request, path, place)
        if found is None and is_file and presented(request) is None:
            if "x-access-token" in request.headers:
                return None
            found = self._by_signature(request, place)
        if found is None:
            return self._by_public_port(place)
        sandbox_id, caller = found
        if place is not None and place.sandbox_id != sandbox_id:
            return None
        if place is None:
            is_cell = _INTERPRETER.fullmatch(path) is not None
            place = Place(sandbox_id, INTERPRETER_PORT) if is_cell else Place(sandbox_id)
        return place, caller

    def _by_token(
        self, request: Request, path: str, place: Place | None
    ) -> tuple[str, Principal] | None:
        opened, headers = self._house.tokens.opened, request.headers
        found = opened("daemon", headers.get("x-access-token", ""))
        is_inside = place is not None and place.is_inside
        # Code can write files, so the token of ports does not run any. Clients send it alone with
        # requests about contexts.
        is_daemon = path == _EXECUTE or _DAEMON.fullmatch(path) is not None
        if found is None and (is_inside or not is_daemon):
            found = opened("traffic", headers.get("e2b-traffic-access-token", ""))
        return found

    def _by_signature(self, request: Request, place: Place | None) -> tuple[str, Principal] | None:
        """Return the sandbox and the caller of a signed address.

        What is wrong with it is kept for the 401, which the guards count as a wrong key.
        """
        client = request.scope.get("client")
        if self._house.state.failures.is_full(client[0] if client else "unix"):
            return None  # so many wrong keys came from there that this one is not looked at
        query = _query_of(request)
        signature, expiration = query.get("signature"), query.get("signature_expiration")
        if signature is None:
            request.scope[REFUSAL] = "missing signature query parameter"
            return None
        message = Signed(
            query.get("path", ""),
            "write" if request.scope.get("method") == "POST" else "read",
            query.get("username", ""),
            expiration,
        )
        found = self._house.tokens.signer(signature, message, self._meant(place))
        if found is None:
            request.scope[REFUSAL] = "invalid signature"
        elif expiration is not None and not _is_ahead(expiration):
            request.scope[REFUSAL] = "signature is already expired"
            return None
        return found

    def _meant(self, place: Place | None) -> list[tuple[str, str]]:
        """Return id and tenant of each live sandbox that a signed address may be of."""
        known = self._house.state.sandboxes.all
        meant = known.values() if place is None else filter(None, [known.get(place.sandbox_id)])
        return [(each.id, each.owner) for each in meant if each.ended_at is None]

    def _by_public_port(self, place: Place | None) -> tuple[Place, Principal] | None:
        """Return a caller for a port that its owner has opened, if the operator permits that."""
        if place is None or not place.is_inside or not self._house.options.public_ports:
            return None
        record = self._house.state.sandboxes.all.get(place.sandbox_id)
        if record is None or record.metadata.get(PUBLIC) != "1":
            return None
        holders = self._house.state.keys.holders(record.owner)
        return (place, replace(holders[0], scope="run")) if holders else None


def is_of_sandbox(path: str, request: Request, place: Place | None) -> bool:
    """Report whether a request is for a plane of a sandbox rather than for the control plane."""
    if place is not None and (place.is_by_host or place.is_inside):
        return True
    if path == _HEALTH:
        return place is not None or bool(_SAYS_SANDBOX & request.headers.keys())
    return _is_of_plane(path)


def _is_of_plane(path: str) -> bool:
    """Report whether the daemon or the interpreter has the path."""
    return path == _HEALTH or bool(_DAEMON.fullmatch(path) or _INTERPRETER.fullmatch(path))


def presented(request: Request) -> str | None:
    """Return the key that a request carries, or None. A call of a procedure sends a user there."""
    return request.headers.get("x-api-key") or bearer_of(request.headers)


def _shows_anything(request: Request) -> bool:
    """Report whether a request carries what may be meant to open a port."""
    return presented(request) is not None or any(name in request.headers for name in _TOKENS)


def _is_ahead(expiration: str) -> bool:
    return _DIGITS.fullmatch(expiration) is not None and int(expiration) > time.time()


def _query_of(request: Request) -> dict[str, str]:
    raw: bytes = request.scope.get("query_string", b"")
    try:
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=64))
    except ValueError:
        return {}
