"""Schemas of the routes of volumes: those that a caller may send, and the answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cellwall.server.schemas.base import StrictModel
from cellwall.server.schemas.responses import Shown

VolumeName = Annotated[str, Field(min_length=1, max_length=63)]
VolumePath = Annotated[str, Field(min_length=2, max_length=600)]


class VolumeBody(StrictModel):
    """A volume to make."""

    name: VolumeName = Field(description="Up to 63 of a-z, 0-9, `.`, `_` and `-`.")
    size_mb: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1024, description="MiB that files may take in it, to the block."
    )
    inodes: Annotated[int, Field(ge=16, le=1 << 28)] | None = Field(
        None, description="Files and directories; by default one for each 16 KiB."
    )


class CopyBody(StrictModel):
    """A copy of a volume."""

    name: VolumeName = Field(description="The name of the copy.")


class Volume(Shown):
    """A volume as it is now."""

    name: str
    size_mb: int
    inodes: int
    created_at: str
    used_bytes: int
    used_inodes: int
    disk_bytes: int


class Volumes(Shown):
    """The volumes there are."""

    volumes: list[Volume]
