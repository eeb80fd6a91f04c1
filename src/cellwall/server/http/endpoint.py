"""The table of routes as data, and the steps every route takes before its handler.

The router, the OpenAPI document, the body caps and the ownership check are made from it; so a new
route cannot forget one of them. The handlers are in `routes`. The invariant: every object that a
path names was found through `ownership.owned` before the handler runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from cellwall.model.errors import UsageError
from cellwall.server.auth.ownership import owned
from cellwall.server.core.errors import HttpError, stopping
from cellwall.server.core.request import ClientGone
from cellwall.server.http import audited_actions

if TYPE_CHECKING:
    from cellwall.server.auth.keys import Scope
    from cellwall.server.core.request import Request
    from cellwall.server.executions.job import Job
    from cellwall.server.executions.record import ExecutionRecord, KeptExecution
    from cellwall.server.executions.sandboxes import CommandRecord, SandboxRecord

_LOOKING = frozenset({"GET", "DELETE"})
"""Methods that begin nothing; they are served while the server stops."""
SMALL_BYTES = 64 * 1024
_M = TypeVar("_M", bound=BaseModel)
Handler = Callable[["Request"], Awaitable[None]]
Access = Literal["public", "token", "key"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One documented answer."""

    description: str
    model: type[BaseModel] | None = None
    media: tuple[str, ...] = ("application/json",)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path."""

    method: str
    """Upper case, or `WS`; `*` is every method of HTTP, and WebSockets too."""
    path: str
    """As in design/0003: `/sandboxes/{sandbox_id}/files`."""
    handler: Handler
    summary: str
    answers: Mapping[int, Answer]
    body: type[BaseModel] | None = None
    body_media: str | None = None
    """Media type of a body that is not JSON."""
    body_bytes: int = SMALL_BYTES
    """Cap of a JSON body in bytes. Uploads have one of their own, from the settings."""
    query: type[BaseModel] | None = None
    is_for_running: bool = False
    """Whether the route serves the end of running work: it is then served while the server
    stops."""
    scope: Scope = "run"
    access: Access = "key"
    """`public`: no key. `token`: a token of this server is enough; `opens` or the handler checks
    it."""
    opens: Callable[[Request], None] | None = None
    """Checks the token and keeps its claims, before anything of the request is written down."""
    headers: tuple[str, ...] = ()
    """Request headers worth documenting."""
    tags: tuple[str, ...] = field(default=())


async def serve(endpoint: Endpoint, request: Request) -> None:
    """Check scope and ownership, then run the handler."""
    is_looking = endpoint.method in _LOOKING or endpoint.is_for_running
    if request.state.is_stopping and not is_looking:
        raise stopping()
    if endpoint.access == "key" and not request.caller.may(endpoint.scope):
        raise HttpError(
            403,
            "forbidden",
            f"key: its scope is {request.caller.scope}, {endpoint.scope} is needed",
            remedy="use another key",
        )
    if endpoint.access == "key":
        await check_ownership(request)
    check_query(endpoint, request)
    if endpoint.opens is not None:
        endpoint.opens(request)
    request.action = audited_actions.action_of(request, endpoint.method, endpoint.path)
    if endpoint.body is None and request.action is not None:
        await audited_actions.begin(request)
    try:
        await endpoint.handler(request)
    except ClientGone:
        raise
    except Exception as error:
        if request.action is not None and request.state.audit is not None:
            request.state.audit.failed(
                request, request.action, str(getattr(error, "code", "internal"))
            )
        raise


async def check_ownership(request: Request) -> None:
    """Raise `NotFound` unless every object that the path names is the caller's."""
    params = request.params
    if "sandbox_id" in params:
        sandbox(request)
        if "command_id" in params:
            command(request)
    if "build_id" in params:
        owned(request.state.templates.builds.all, request.owner, "build", params["build_id"])
    if "execution_id" in params:
        request.execution = await found_execution(request, params["execution_id"])


def sandbox(request: Request) -> SandboxRecord:
    """Return the sandbox the path names."""
    return owned(
        request.state.sandboxes.all, request.owner, "sandbox", request.params["sandbox_id"]
    )


def command(request: Request) -> CommandRecord:
    """Return the command the path names."""
    return owned(sandbox(request).commands, request.owner, "command", request.params["command_id"])


async def found_execution(request: Request, execution_id: str) -> ExecutionRecord | KeptExecution:
    """Return the caller's execution of that id, from memory or from the store."""
    found = await request.state.executions.find(request.owner, execution_id)
    known: Mapping[str, ExecutionRecord | KeptExecution] = (
        request.state.executions.all if found is None else {execution_id: found}
    )
    return owned(known, request.owner, "execution", execution_id)


def execution(request: Request) -> ExecutionRecord | KeptExecution:
    """Return the execution the path names."""
    if request.execution is None:
        raise LookupError("the path names no execution")
    return request.execution


async def body_of(request: Request, model: type[_M], most_bytes: int = SMALL_BYTES) -> _M:
    """Read and check a JSON body."""
    request.check_type("application/json")
    data = await request.body(most_bytes)
    request.scope["cellwall.body"] = data  # for the idempotency key, which covers it
    body = parsed(model, data)
    learn_secrets(request, body)
    await audited_actions.begin(request, body, data)
    return body


def learn_secrets(request: Request, body: BaseModel) -> None:
    """Keep the values of a body's environment out of everything the server writes."""
    env: Mapping[str, str] | None = getattr(body, "env", None)
    if env:
        request.state.observer.redactor.learn_all(env.values(), request.owner)


def parsed(model: type[_M], data: bytes) -> _M:
    """Check JSON against a schema; `UsageError` names the faults and their places."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise explained(error, "body") from None


def check_query(endpoint: Endpoint, request: Request) -> None:
    """Raise `UsageError` for a query that the route does not have.

    The query of a port belongs to the server inside. A public page accepts any query: clients add
    fields to defeat caches.
    """
    is_free = endpoint.method == "*" or endpoint.access == "public"
    if is_free or not request.scope.get("query_string"):
        return
    if endpoint.query is None:
        raise UsageError("query: this path takes none", remedy="see /docs for the fields")
    query_of(request, endpoint.query)


def query_of(request: Request, model: type[_M]) -> _M:
    """Check the query against a schema."""
    raw = request.scope.get("query_string", b"")
    given: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=64,
        )
    except ValueError:
        raise UsageError("query: it cannot be read", remedy="encode it as UTF-8") from None
    for name, value in pairs:
        if name in given:
            raise UsageError(f"query: {name[:40]!r} comes twice", remedy="give it once")
        given[name] = value
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise explained(error, "query") from None


def explained(error: ValidationError, where: str) -> UsageError:
    """Return the error about the first faults, as one sentence."""
    words = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False)[:3]:
        place = ".".join(str(part)[:60] for part in fault["loc"]) or where
        words.append(f"{place}: {fault['msg'].removeprefix('Value error, ')}")
    return UsageError(f"{where}: {'; '.join(words)}"[:1000], remedy="see /docs for the fields")


async def wait_ended(request: Request, thing: Job, wait_s: float) -> None:
    """Hold the answer until the end of `thing`, or for `wait_s` seconds."""
    if wait_s > 0:
        await request.wait(thing.ended, wait_s)
