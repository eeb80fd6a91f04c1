"""Audit actions of the routes, and the two steps around a handler that write them.

`endpoint` takes the steps for every route, so a handler cannot forget them; `writer` writes. The
invariant: every route that changes something is in one of the two tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from cellwall.server.audit.writer import parameters_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from cellwall.server.audit.writer import Audit
    from cellwall.server.core.request import Request

_BOX = "/sandboxes/{sandbox_id}"
_FILES = f"{_BOX}/files"
_COMMAND = f"{_BOX}/commands/{{command_id}}"
_CHECKPOINT = f"{_BOX}/checkpoints/{{checkpoint_id}}"
_CONTEXT = f"{_BOX}/contexts/{{context}}"

ACTIONS: Mapping[tuple[str, str], str] = {
    ("DELETE", "/executions/{execution_id}"): "execution.cancel",
    ("POST", "/sandboxes"): "sandbox.create",
    ("PATCH", _BOX): "sandbox.change",
    ("DELETE", _BOX): "sandbox.delete",
    ("POST", f"{_BOX}/pause"): "sandbox.pause",
    ("POST", f"{_BOX}/resume"): "sandbox.resume",
    ("POST", f"{_BOX}/hibernate"): "sandbox.hibernate",
    ("POST", f"{_BOX}/contexts"): "context.create",
    ("DELETE", _CONTEXT): "context.end",
    ("POST", f"{_CONTEXT}/restart"): "context.restart",
    ("POST", f"{_CONTEXT}/interrupt"): "context.interrupt",
    ("POST", f"{_BOX}/commands"): "command.start",
    ("DELETE", _COMMAND): "command.kill",
    ("POST", f"{_COMMAND}/stdin"): "command.feed",
    ("POST", f"{_COMMAND}/signal"): "command.signal",
    ("WS", f"{_BOX}/terminal"): "terminal.open",
    ("WS", f"{_BOX}/terminal/{{command_id}}"): "terminal.attach",
    ("PUT", _FILES): "file.write",
    ("POST", _FILES): "file.write",
    ("DELETE", _FILES): "file.remove",
    ("POST", f"{_FILES}/mkdir"): "file.mkdir",
    ("POST", f"{_FILES}/move"): "file.move",
    ("PUT", f"{_FILES}/archive"): "file.unpack",
    ("POST", f"{_FILES}/sign"): "file.sign",
    ("POST", f"{_BOX}/checkpoints"): "checkpoint.create",
    ("POST", f"{_CHECKPOINT}/rollback"): "checkpoint.rollback",
    ("DELETE", _CHECKPOINT): "checkpoint.drop",
    ("PUT", f"{_BOX}/network"): "network.change",
    ("POST", f"{_BOX}/packages"): "packages.install",
    ("PUT", "/signed/{token}"): "file.write",
    ("POST", f"{_BOX}/ports/sign"): "port.sign",
    ("POST", "/keys"): "key.create",
    ("DELETE", "/keys/{key_id}"): "key.revoke",
    ("POST", "/images"): "image.pull",
    ("DELETE", "/images/{image_id}"): "image.remove",
    ("POST", "/templates"): "template.build",
    ("DELETE", "/templates/builds/{build_id}"): "template.cancel",
    ("DELETE", "/templates/{name}"): "template.remove",
    ("POST", f"{_BOX}/fork"): "sandbox.fork",
    ("POST", f"{_BOX}/snapshots"): "snapshot.create",
    ("POST", "/snapshots/{snapshot_id}/restore"): "snapshot.restore",
    ("DELETE", "/snapshots/{snapshot_id}"): "snapshot.delete",
    ("POST", "/volumes"): "volume.create",
    ("POST", "/volumes/{name}/copy"): "volume.copy",
    ("DELETE", "/volumes/{name}"): "volume.remove",
    ("PUT", "/secrets/{name}"): "secret.set",
    ("DELETE", "/secrets/{name}"): "secret.remove",
}
"""Actions that are written to the audit before the handler runs."""

_OWN_RECORD = "each execution has its own record, in the transaction of its acceptance"
_TRAFFIC = "traffic of a server inside; the token that opens it is audited when it is made"
EXEMPT: Mapping[tuple[str, str], str] = {
    ("POST", "/execute"): _OWN_RECORD,
    ("POST", "/executions/batch"): _OWN_RECORD,
    ("POST", f"{_BOX}/execute"): _OWN_RECORD,
    ("POST", "/executions/{execution_id}/calls/{call}"): "each call has a record when it is over",
    ("*", f"{_BOX}/ports/{{port}}"): _TRAFFIC,
    ("*", f"{_BOX}/ports/{{port}}/{{path:path}}"): _TRAFFIC,
}
"""Routes that change something and are not written by this module, with the reason."""

_FOUND = frozenset({"sandbox_id", "command_id", "execution_id", "build_id"})
"""Path parameters that are ids made by the server: `ownership` has found their objects."""
READS = frozenset({("GET", _FILES), ("GET", f"{_FILES}/archive"), ("GET", "/signed/{token}")})
"""Routes whose reads are counted; audited as `file.read` if the operator enables that."""


def action_of(request: Request, method: str, path: str) -> str | None:
    """Return the audit action of a route, or None; count the request if it is a read."""
    route = (method, path)
    if route in READS:
        if request.state.observer.metrics is not None:
            request.state.observer.metrics.reads.add()
        audit = request.state.audit
        return "file.read" if audit is not None and audit.has_reads else None
    return ACTIONS.get(route)


async def begin(request: Request, body: BaseModel | None = None, data: bytes = b"") -> None:
    """Write that the request's action is about to be done, before the handler does anything.

    Raises the errors of the store: then nothing is done.
    """
    audit = request.state.audit
    if audit is None:
        return
    request.origin.parameters = await parameters_of(request, data)
    if request.action is not None:
        request.object = _object(request, body, audit)
        await audit.asked(request, request.action)


def _object(request: Request, body: BaseModel | None, audit: Audit) -> str:
    """Return the objects that a request's path, query and body name, or those of its token.

    Ids in a path were found before; every other value is a name that the caller chose.
    """
    owner = (
        request.claims.get("owner", "") if request.principal is None else request.principal.tenant
    )
    if request.claims:
        path = audit.chosen(owner, request.claims["path"])
        return f"sandbox:{request.claims['sandbox']} path:{path}"
    named = [
        f"{name.removesuffix('_id')}:{value if name in _FOUND else audit.chosen(owner, value)}"
        for name, value in request.params.items()
        if name != "token"
    ]
    query = parse_qs(request.scope.get("query_string", b"").decode("latin-1"), max_num_fields=64)
    named += [f"path:{audit.chosen(owner, value)}" for value in query.get("path", ())]
    for name in ("path", "target", "port", "operation", "template", "image", "user"):
        value = getattr(body, name, None)
        if value is not None:
            named.append(f"{name}:{audit.chosen(owner, str(value))}")
    return " ".join(named)
