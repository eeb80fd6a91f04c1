"""Bodies and queries of the control plane, read and checked.

Strict about what is asked for: a field that this server does not know is refused by its name, as is
one that it knows and does not have. What a client sends as a default (null, false, nothing) is
taken. The invariant: nothing is accepted and ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from cellwall.apps.doors import exchange
from cellwall.apps.doors.e2b.answers import refused

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_M = TypeVar("_M", bound="Body")
_BODY_BYTES = 1024 * 1024
_Text = Annotated[str, Field(max_length=512)]
_Hosts = Annotated[list[_Text], Field(max_length=1000)]
Seconds = Annotated[int, Field(ge=0, le=604_800)]


class Body(BaseModel):
    """A body of the control plane."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, defer_build=True)


class AutoResume(Body):
    """Whether traffic resumes a paused sandbox."""

    enabled: bool = False


class Transform(Body):
    """What is changed in a request to a host."""

    headers: Annotated[dict[str, str], Field(max_length=32)] | None = None


class HostRule(Body):
    """One rule of a host."""

    transform: Transform | None = None


_Rules = Annotated[dict[_Text, list[HostRule]], Field(max_length=1000)]


class Network(Body):
    """Where a sandbox may connect to, and who may connect to it."""

    allow_out: _Hosts | None = None
    deny_out: _Hosts | None = None
    rules: _Rules | None = None
    egress_proxy: dict[str, Any] | None = None
    dns_servers: list[Any] | None = None
    allow_public_traffic: bool | None = None
    mask_request_host: str | None = None
    https_ports: list[Any] | None = None


class NetworkUpdate(Body):
    """The network policy that replaces a sandbox's."""

    allow_out: _Hosts | None = None
    deny_out: _Hosts | None = None
    rules: _Rules | None = None
    egress_proxy: dict[str, Any] | None = None
    dns_servers: list[Any] | None = None
    allow_internet_access: Annotated[bool | None, Field(alias="allow_internet_access")] = None


class NewSandbox(Body):
    """A sandbox to create."""

    template_id: Annotated[str, Field(alias="templateID", min_length=1, max_length=200)]
    timeout: Annotated[int, Field(ge=1, le=604_800)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=64)] | None = None
    env_vars: Annotated[dict[str, str], Field(max_length=256)] | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    allow_internet_access: Annotated[bool | None, Field(alias="allow_internet_access")] = None
    network: Network | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[Any] | None = None
    secure: bool | None = None


class Connect(Body):
    """A sandbox to connect to."""

    timeout: Seconds | None = None
    memory: bool | None = None


class Resume(Body):
    """A paused sandbox to resume."""

    timeout: Seconds | None = None
    auto_pause: bool | None = None


class Timeout(Body):
    """The rest of a sandbox's life."""

    timeout: Seconds


class Refresh(Body):
    """The least rest of a sandbox's life."""

    duration: Seconds | None = None


class Pause(Body):
    """A sandbox to pause."""

    memory: bool | None = None
    require_healthy_guest: bool | None = None


class Fork(Body):
    """Copies to make."""

    timeout: Annotated[int, Field(ge=1, le=604_800)] | None = None
    count: Annotated[int, Field(ge=1, le=20)] | None = None


class NewSnapshot(Body):
    """A snapshot to make."""

    name: Annotated[str, Field(max_length=200)] | None = None
    memory: bool | None = None


async def read(request: Request, model: type[_M]) -> _M:
    """Return the checked body; an empty one is `{}`. Raises the 400 that names the field."""
    data = await request.body(_BODY_BYTES)
    try:
        value = exchange.decoded(data) if data.strip() else {}
    except ValueError as error:
        raise refused("body", f"it is not JSON: {error}"[:200]) from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> Exception:
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part)[:60] for part in fault["loc"]) or "body"
    if fault["type"] == "extra_forbidden":
        return refused(field, "this server does not have the option")
    return refused(field, fault["msg"])


def check_absent(body: Body, *names: str) -> None:
    """Raise the 400 for the first of these fields that asks for something."""
    for name in names:
        if getattr(body, name):
            field = type(body).model_fields[name].alias or to_camel(name)
            raise refused(field, "this server does not have the option")
