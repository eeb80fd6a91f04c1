"""The words of commands about what a sandbox has from elsewhere: an image, its user, volumes."""

from __future__ import annotations

from typing import Annotated

import typer

from cellwall.model.errors import UsageError

Image = Annotated[
    str | None,
    typer.Option(
        help="Use an image as the root: ./task.tar, docker://name or a registry's python:3.12."
    ),
]
ServersImage = Annotated[
    str | None,
    typer.Option(help="Use an image that the server's operator permits, such as python:3.12."),
]
User = Annotated[
    str | None, typer.Option(help="A user of the image, such as root; default: the image's.")
]

Volume = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:PATH[:ro]", help="Show a volume at a path inside; repeatable."),
]


def check(command: str, image: str | None, user: str | None) -> None:
    """Raise `UsageError` for a user without an image."""
    if user is not None and image is None:
        raise UsageError(
            f"{command}: --user is one of an image", remedy="name it with --image, too"
        )


def volumes_of(words: list[str] | None) -> dict[str, str] | None:
    """Return what --volume gives as a request to a server says it. Raises `UsageError`."""
    if not words:
        return None
    from cellwall.model.volume import mounts_of

    return {each.name: each.path + (":ro" if each.read_only else "") for each in mounts_of(words)}
