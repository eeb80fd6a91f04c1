"""Bodies of the builder's requests, with the strictness of `control.bodies`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cellwall.apps.doors.e2b.control.bodies import Body
from cellwall.apps.doors.e2b.templates.built_facts import MOST_COMMAND

_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Text = Annotated[str, Field(max_length=65_536)]
Tags = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=30)]


class NewTemplate(Body):
    """A build to reserve."""

    name: _Name | None = None
    alias: _Name | None = None
    """Name that older clients send."""
    tags: Tags | None = None
    cpu_count: Annotated[int, Field(ge=1, le=1024)] | None = None
    memory_mb: Annotated[int | None, Field(alias="memoryMB", ge=1, le=1 << 24)] = None
    min_free_disk_mb: int | None = None
    team_id: Annotated[str | None, Field(alias="teamID")] = None


class Step(Body):
    """One step of a build."""

    type: Literal["ENV", "COPY", "RUN", "USER", "WORKDIR"]
    args: Annotated[list[_Text], Field(max_length=512)] = Field(default_factory=list)
    files_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    force: bool | None = None
    force_upload: bool | None = None
    """Whether the client has sent the files again. This and what follows it has done before."""
    resolve_symlinks: bool | None = None
    gzip: bool | None = None


class StartBuild(Body):
    """A build to start."""

    from_image: _Name | None = None
    from_template: _Name | None = None
    from_image_registry: dict[str, Any] | None = None
    force: bool | None = None
    steps: Annotated[list[Step], Field(max_length=300)] = Field(default_factory=list)
    start_cmd: Annotated[str, Field(max_length=MOST_COMMAND)] | None = None
    ready_cmd: Annotated[str, Field(max_length=MOST_COMMAND)] | None = None


class AssignTags(Body):
    """Tags for a build that exists."""

    target: _Name
    tags: Annotated[Tags, Field(min_length=1)]


class RemoveTags(Body):
    """Tags to remove."""

    name: _Name
    tags: Annotated[Tags, Field(min_length=1)]
