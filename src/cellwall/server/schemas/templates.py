"""Schemas of the routes of a tenant's own templates: what a caller may send, and the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cellwall.server.schemas.base import StrictModel
from cellwall.server.schemas.images import ImageName, UserName
from cellwall.server.schemas.network import NetworkField
from cellwall.server.schemas.requests import (
    Environment,
    FileBody,
    LimitsBody,
    PathText,
    Requirements,
    VariableName,
)
from cellwall.server.schemas.responses import Shown

OwnName = Annotated[str, Field(min_length=1, max_length=127)]
_Line = Annotated[str, Field(min_length=1, max_length=32_768)]


class TemplatePackages(StrictModel):
    """Packages that the image's own tools install."""

    python: Requirements = Field([])
    apt: Requirements = Field([])
    npm: Requirements = Field([])


class TemplateBody(StrictModel):
    """A template to build: from a Dockerfile, or from an image and what is added to it."""

    name: OwnName = Field(description="With a tag, as `task:1`; by default `latest`.")
    tags: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63)]], Field(max_length=32)
    ] = Field([], description="Further tags that the name gets for the same image.")
    dockerfile: Annotated[str, Field(max_length=1 << 20)] | None = Field(
        None, description="The text of a Dockerfile; exactly one of it and `from_image`."
    )
    from_image: ImageName | None = None
    packages: TemplatePackages | None = None
    env: Environment = Field({}, description="Environment of the template's programs.")
    files: Annotated[dict[PathText, str | FileBody], Field(max_length=1000)] = Field(
        {},
        description="With `from_image` files by their paths in the template; with `dockerfile` "
        "the context.",
    )
    commands: Annotated[list[_Line], Field(max_length=200)] = Field(
        [], description="Commands of the shell, run as root in this order, behind all else."
    )
    working_dir: PathText | None = None
    user: UserName | None = None
    preload: Annotated[list[_Line], Field(max_length=100)] = Field(
        [], description="Not possible yet: a template of your own imports nothing ahead."
    )
    arguments: Annotated[
        dict[VariableName, Annotated[str, Field(max_length=32_768)]], Field(max_length=256)
    ] = Field({}, description="Values of `ARG`.")
    target: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="The stage that is wanted; by default the last one."
    )
    keeps_env: bool = Field(
        True,
        description="Whether what `ENV` says in the last stage holds in sandboxes, too; otherwise "
        "in its steps alone.",
    )
    network: NetworkField = Field("none", description="Where the steps may connect to.")
    limits: LimitsBody | None = Field(None, description="Limits of each step.")
    wait: Annotated[float, Field(ge=0, le=60)] = Field(
        0.0, description="Seconds to hold the answer until the end of the build."
    )

    @model_validator(mode="after")
    def _one_source(self) -> TemplateBody:
        if (self.dockerfile is None) == (self.from_image is None):
            raise ValueError("give exactly one of `dockerfile` and `from_image`")
        added = {"packages", "env", "commands", "working_dir", "user"} & self.model_fields_set
        if self.env and not self.keeps_env:
            raise ValueError("keeps_env: false leaves nothing of `env`; give one of them")
        if self.dockerfile is not None and added:
            raise ValueError(f"{sorted(added)[0]}: it belongs to `from_image`; write it as a step")
        return self


class OwnTemplate(Shown):
    """A template that the tenant has built."""

    name: str
    image: str
    built_at: str
    is_here: bool
    size_bytes: int | None
    inodes: int | None
    used_at: str | None
    user: str | None
    working_dir: str | None
    environment: dict[str, str] | None
    labels: dict[str, str] | None
    has_python: bool | None


class BuildStep(Shown):
    """The step at hand."""

    line: int
    text: str


class Build(Shown):
    """A build on its way, or how it ended."""

    id: str
    name: str
    status: Literal["building", "built", "failed", "cancelled"]
    began_at: str
    steps: int
    cached: int
    step: BuildStep | None
    log: list[dict[str, Any]]
    last: int
    template: OwnTemplate | None
    clipped: dict[str, float]
    error: dict[str, Any] | None
