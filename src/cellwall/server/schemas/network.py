"""Schemas of a network policy; what its texts mean is checked by `model.network`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from cellwall.model.errors import UsageError
from cellwall.model.network import NetworkPolicy
from cellwall.server.schemas.base import StrictModel

_Text = Annotated[str, Field(min_length=1, max_length=512)]
_Port = Annotated[int, Field(ge=1, le=65_535)]


class NetworkRuleBody(StrictModel):
    """One allowed destination."""

    host: _Text = Field(
        description="A name, `*.` and a name for all below it, an address or a network."
    )
    ports: Annotated[list[_Port], Field(max_length=64)] | None = Field(
        None, description="Without them 80 and 443."
    )
    methods: Annotated[list[_Text], Field(max_length=16)] | None = Field(
        None, description="HTTP methods; needs plain HTTP, so not port 443."
    )
    paths: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=64)] | None = (
        Field(None, description="Beginnings of paths; needs plain HTTP.")
    )


class DeniedDestinationBody(StrictModel):
    """One destination that is refused, whatever is allowed."""

    host: _Text = Field(
        description="A name, `*.` and a name for all below it, an address or a network."
    )
    ports: Annotated[list[_Port], Field(max_length=64)] | None = Field(
        None, description="Without them every port."
    )


class SetHeadersBody(StrictModel):
    """Header fields that requests to one server get."""

    host: _Text = Field(description="A name, or `*.` and a name for all below it.")
    ports: Annotated[list[_Port], Field(max_length=64)] | None = Field(
        None, description="Without them 80 and 443."
    )
    set: dict[Annotated[str, Field(max_length=128)], Annotated[str, Field(max_length=4096)]] = (
        Field(description="Values by field, in place of the request's own. They are no secrets.")
    )


Rules = Annotated[list[_Text | NetworkRuleBody], Field(max_length=1000)]


_Rules = Annotated[list[_Text], Field(max_length=10_000)]


class PackagesPolicyBody(StrictModel):
    """What may be installed, from the operator's registries."""

    registries: Annotated[list[Literal["pypi", "npm"]], Field(max_length=2)]
    allow: _Rules | None = Field(
        None, description="Names, maybe with versions; without it all, an empty list is nothing."
    )
    deny: _Rules = Field([], description="What may not be installed, whatever is allowed.")
    min_age_days: Annotated[float, Field(ge=0)] = Field(
        0, description="Days that a file has to have been in its registry."
    )
    allow_sdists: bool = Field(False, description="Whether source distributions may be built.")
    largest_file_mb: Annotated[int, Field(ge=1)] = 1024
    largest_page_mb: Annotated[int, Field(ge=1)] = 32
    within: _Rules | None = Field(None, description="The operator's list; answers show it.")


class NetworkBody(StrictModel):
    """A network policy with its limits."""

    mode: Literal["none", "allow", "open"] | None = Field(
        None, description="Without it `allow` if there are rules, else `none`."
    )
    allow: Rules | None = Field(None, description="An empty list allows nothing.")
    deny: Annotated[list[_Text | DeniedDestinationBody], Field(max_length=1000)] | None = Field(
        None,
        description="Refused although `allow` or the mode `open` lets it pass; an empty list "
        "denies nothing.",
    )
    connections: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most connections at one time."
    )
    transfer_mb: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most MiB in both directions together, over the sandbox's life."
    )
    packages: bool | PackagesPolicyBody | None = Field(
        None, description="What pip, uv and npm may install; true: all that the operator allows."
    )
    headers: Annotated[list[SetHeadersBody], Field(max_length=1000)] | None = Field(
        None, description="What is set in requests that are allowed; TLS to these hosts is opened."
    )
    rate_kb_s: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most KiB a second in both directions together."
    )


def _checked(value: object) -> object:
    """Say what is wrong in one sentence, before the parts of the union say so one by one."""
    try:
        NetworkPolicy.of(value)
    except UsageError as error:
        raise ValueError(f"{error.message.removeprefix('network: ')}; {error.remedy}") from None
    return value


NetworkField = Annotated[
    Literal["none", "packages", "open"] | Rules | NetworkBody, BeforeValidator(_checked)
]


def value_of(network: str | list[str | NetworkRuleBody] | NetworkBody) -> object:
    """Return what `NetworkPolicy.of` takes."""
    if isinstance(network, list):
        return [_plain(rule) for rule in network]
    return network if isinstance(network, str) else _plain(network)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a text or a model
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
