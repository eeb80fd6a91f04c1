"""The doors that a gateway opens: of each protocol, where its requests go, by paths and headers.

The doors themselves are at the nodes (`apps.doors`); a gateway needs no more of them than this. The
invariant: what belongs to all nodes together, and cannot be told apart, is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

from cellwall.apps.doors.e2b.addressing import place_of
from cellwall.apps.doors.judge0 import tokens
from cellwall.cluster.gateway.data.named import CLAIM
from cellwall.cluster.gateway.doors.opened import Opened
from cellwall.cluster.gateway.routing import Makes, Way
from cellwall.cluster.gateway.wire.heads import Shaped
from cellwall.model.errors import UsageError
from cellwall.model.ids import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cellwall.apps.doors.refusal import Refusal
    from cellwall.server.core.door_settings import DoorSettings
    from cellwall.server.core.settings import ServerSettings

    Shapes = Callable[[Exception, str, Mapping[bytes, bytes]], Shaped]
    WayOf = Callable[[str, str, Mapping[bytes, bytes]], Way]

_ANY = Way("any")
_PROGRAM = Way("any", makes="program")
_NOWHERE = Way("refused")
_OF_ONE = Way("all")
"""Things that lie on one node and do not say on which: there are none where there are several."""
_BEARER, _KEY = b"authorization", b"x-api-key"
_KEYS: Mapping[str, tuple[bytes, ...]] = {
    "e2b": (_KEY, _BEARER),
    "ragflow": (_BEARER, b"x-sandbox-token"),
    "dify": (_KEY,),
    "fusion": (_KEY, _BEARER),
    "piston": (_KEY, _BEARER),
    "judge0": (b"x-auth-token", _BEARER),
}
_E2B_SANDBOX = re.compile(r"(?:/v2)?/sandboxes/([a-z0-9]{1,64})(?:/.*)?")
_E2B_TOKEN = re.compile(rb"cws_([a-z0-9]{1,64})_[0-9a-f]{12}_[0-9a-f]{64}")
_E2B_TOKENS = (b"x-access-token", b"e2b-traffic-access-token")
_E2B_ANYWHERE = re.compile(r"/health|(?:/v2)?/sandboxes")
"""Paths at which every node answers alike, or makes something new."""
_E2B_LISTS = frozenset({"/sandboxes", "/v2/sandboxes"})
_E2B_SNAPSHOTS = "/snapshots"
_E2B_TEMPLATES = frozenset({"/templates", "/v2/templates"})
_E2B_TEMPLATE = re.compile(
    r"/templates/aliases/([^/]{1,200})|(?:/v2)?/templates/([^/]{1,200})(?:/(?:files|builds|tags).*)?"
)
_E2B_UPLOAD = re.compile(r"/uploads/([a-z2-7]{4})_.*")
_SUBMISSION = re.compile(r"/submissions/([^/]+)")


def opened_doors(settings: ServerSettings) -> dict[str, Opened]:
    """Return the doors of a gateway by name. Raises UsageError for one that is not known."""
    if settings.doors:
        from cellwall.apps.doors.gate import check_doors

        check_doors(settings)
    return {name: _opened(name, each) for name, each in settings.doors.items()}


def _opened(name: str, door: DoorSettings) -> Opened:
    domain = door.options.get("domain")
    if domain is not None and not isinstance(domain, str):
        raise UsageError(
            f"settings: doors.{name}.domain: {domain!r:.80} cannot be", remedy="give a name"
        )
    return Opened(
        name,
        _KEYS[name],
        _ways(name, domain),
        _shapes(name, domain),
        has_tokens=name == "e2b",
        is_whole=name == "piston",
        tenant=door.tenant,
    )


def _shapes(name: str, domain: str | None) -> Shapes:
    """Return what makes of an error the answer that the door would give."""
    refusal = _refusals(name, domain)

    def shaped(error: Exception, path: str, headers: Mapping[bytes, bytes]) -> Shaped:
        made = refusal(error, path, headers)
        return Shaped(made.status, made.body, made.media_type, made.headers)

    return shaped


def _refusals(
    name: str, domain: str | None
) -> Callable[[Exception, str, Mapping[bytes, bytes]], Refusal]:
    """Return the door's own function; only what is open is imported."""
    if name == "e2b":
        from cellwall.apps.doors.e2b import answers as e2b

        def of_e2b(error: Exception, path: str, headers: Mapping[bytes, bytes]) -> Refusal:
            place = place_of(_in_text(headers), domain)
            sandbox_id = "" if place is None else place.sandbox_id
            return e2b.refusal(error, "/" + path.lstrip("/"), sandbox_id)

        return of_e2b
    if name == "ragflow":
        from cellwall.apps.doors.ragflow import answers as ragflow

        return lambda error, path, _: ragflow.refusal(error, is_of_run=path == "/run")
    if name == "fusion":
        from cellwall.apps.doors.fusion import answers as fusion

        return lambda error, path, _: fusion.refusal(error, path)
    of_error = _refusal_of(name)
    return lambda error, _path, _headers: of_error(error)


def _refusal_of(name: str) -> Callable[[Exception], Refusal]:
    """Return the function of a door whose refusals say nothing of the request."""
    if name == "dify":
        from cellwall.apps.doors.dify.answers import refusal
    elif name == "piston":
        from cellwall.apps.doors.piston.answers import refusal
    else:
        from cellwall.apps.doors.judge0.refusals import refusal
    return refusal


def _ways(name: str, domain: str | None) -> WayOf:
    if name == "judge0":
        return _of_judge0
    if name == "e2b":
        return _of_e2b(domain)
    return _of_programs


def _of_programs(method: str, path: str, headers: Mapping[bytes, bytes]) -> Way:
    """Return where a request goes: to any node, with a program or with a question."""
    is_socket = path.partition("?")[0].rstrip("/").endswith("/connect")  # Piston's
    return _PROGRAM if method == "POST" or is_socket else _ANY


def _of_judge0(method: str, path: str, headers: Mapping[bytes, bytes]) -> Way:
    """Return where a request about submissions goes; each is at the node that its token names."""
    where, _, query = path.partition("?")
    if where == "/submissions" and method == "GET":
        return _OF_ONE
    found = _SUBMISSION.fullmatch(where)
    named = [found[1]] if found else []
    if where == "/submissions/batch":
        named = [each for each in parse_qs(query).get("tokens", [""])[0].split(",") if each]
    nodes = {tokens.node_of(each) for each in named} - {""}
    if len(nodes) > 1:
        return _NOWHERE
    if nodes:
        return Way("object", nodes.pop(), "submission", named[0])
    is_waiting = method == "POST" and parse_qs(query).get("wait", [""])[-1] == "true"
    return _PROGRAM if is_waiting and where == "/submissions" else _ANY


def _of_e2b(domain: str | None) -> WayOf:
    def of(method: str, target: str, headers: Mapping[bytes, bytes]) -> Way:
        """Return where a request goes: to the node of the sandbox that it names, if it does."""
        path = "/" + target.partition("?")[0].lstrip("/")
        sandbox = _sandbox(path, headers, domain)
        if sandbox:
            is_fork = method == "POST" and unquote(path).endswith(f"/{sandbox}/fork")
            makes: Makes = "fork" if is_fork else ""
            return Way("object", node_of(sandbox), "sandbox", sandbox, makes=makes)
        if method == "GET" and (path in _E2B_LISTS or path == _E2B_SNAPSHOTS):
            return Way("all", thing="array", path=path)
        if method == "POST" and path in _E2B_LISTS:
            return Way("template", path="templateID", makes="sandbox")
        template = _template(method, path)
        if template is not None:
            return template
        return _ANY if _E2B_ANYWHERE.fullmatch(path) else _OF_ONE

    return of


def _template(method: str, path: str) -> Way | None:
    """Return the way of what builds or names templates; None: it does neither."""
    named = _E2B_TEMPLATE.fullmatch(path)
    upload = _E2B_UPLOAD.fullmatch(path)
    if upload is not None:
        return Way("object", upload[1], "upload", upload[0])
    if method == "POST" and path == "/v3/templates":
        return Way("template", thing=CLAIM, path="name alias")
    if path == "/templates/tags":
        return Way("template", path="target name")
    if named is not None:
        return Way("template", name=unquote(named[1] or named[2]))
    if method == "GET" and path in _E2B_TEMPLATES:
        return Way("all", thing="array", path=path)
    return None


def _in_text(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode("latin-1"): value.decode("latin-1") for key, value in headers.items()}


def _sandbox(path: str, headers: Mapping[bytes, bytes], domain: str | None) -> str:
    """Return the sandbox that a request names: by Host or header, by its path, or by a token."""
    place = place_of(_in_text(headers), domain)
    if place is not None:
        return place.sandbox_id
    found = _E2B_SANDBOX.fullmatch(path)
    if found is not None:
        return found[1]
    for name in _E2B_TOKENS:
        token = _E2B_TOKEN.fullmatch(headers.get(name, b""))
        if token is not None:
            return token[1].decode()
    return ""
