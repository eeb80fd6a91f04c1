"""Schemas of the routes of images: the one that a caller may send, and the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cellwall.server.schemas.base import StrictModel
from cellwall.server.schemas.responses import Shown

ImageName = Annotated[str, Field(min_length=1, max_length=400)]
UserName = Annotated[str, Field(min_length=1, max_length=128)]


class ImageBody(StrictModel):
    """An image to pull."""

    image: ImageName = Field(description="Its name, such as `python:3.12-slim`.")
    wait: Annotated[float, Field(ge=0, le=60)] = Field(
        0.0, description="Seconds to hold the answer until it is here."
    )


class Image(Shown):
    """An image that is on this machine."""

    id: str
    names: list[str]
    size_bytes: int
    inodes: int
    unpacked_at: str
    used_at: str
    user: str
    working_dir: str
    environment: dict[str, str]
    entrypoint: list[str]
    command: list[str]
    has_python: bool
    skipped: dict[str, int]


class Images(Shown):
    """The images there are."""

    images: list[Image]


class Pull(Shown):
    """An image on its way here."""

    id: str
    name: str
    status: Literal["coming", "here", "failed"]
    come_bytes: int
    all_bytes: int | None
    image: Image | None
    error: dict[str, Any] | None
