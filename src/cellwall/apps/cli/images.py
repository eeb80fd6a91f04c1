"""`cellwall images`: bring, build, list and remove the images that sandboxes use as their root.

Not the store (`engine.images`). Called by `commands`. Invariant: what a script reads (an id, JSON)
is on stdout alone, and progress goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cellwall.apps.cli.console.terminal import complain
from cellwall.apps.cli.words import network_words

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.images.builder import BuildEvent
    from cellwall.engine.images.image_store import ImageStore, StoredImage

T = TypeVar("T")

app = typer.Typer(
    help="Bring, list and remove images that sandboxes use as their root.", rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def without_command(context: typer.Context) -> None:
    """Bring, list and remove images; without a command, list them."""
    if context.invoked_subcommand is None:
        list_all()


@app.command("ls")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the images on this machine, the newest first."""

    async def found(store: ImageStore) -> list[StoredImage]:
        return store.images()

    images = _with_store(found)
    if as_json:
        typer.echo(json.dumps([_facts(each) for each in images], indent=2))
        return
    from cellwall.apps.cli.console.table import show

    rows = [
        (
            each.digest[7:19],
            ", ".join(each.names),
            str(each.size_bytes >> 20),
            str(each.own_bytes >> 20),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each.made_at)),
            each.config.user or "root",
            "yes" if each.has_python else "no",
        )
        for each in images
    ]
    show(("id", "names", "MiB", "not shared", "unpacked", "user", "python3"), rows)


@app.command("pull", short_help="Bring an image here and unpack it.")
def pull(
    image: Annotated[
        str,
        typer.Argument(help="Such as python:3.12-slim, ./task.tar or docker://name."),
    ],
) -> None:
    """Bring an image here, also if its name is known, unpack it and print its id.

    \b
    cellwall images pull ./task.tar
    cellwall images pull docker://my-task
    """
    from cellwall.images.reference import parse

    meant = parse(image)
    stored = _with_store(lambda store: store.bring(meant, _progress()))
    for what, count in stored.skipped.items():
        if count:
            complain(f"{image}: {count} files with {what} came without them")
    typer.echo(stored.digest)


def _progress() -> Callable[[int, int], None] | None:
    """Return what shows how much has come, where a person looks."""
    if not sys.stderr.isatty():
        return None

    def shown(come: int, whole: int) -> None:
        sys.stderr.write(f"\r{come >> 20} of {whole >> 20} MiB" + ("\n" if come == whole else ""))

    return shown


@app.command("build", short_help="Build an image from a Dockerfile.")
def build(  # noqa: PLR0913, PLR0917 - each is a choice of the caller's
    context: Annotated[Path, typer.Argument(help="Directory with the files that it copies.")],
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", metavar="NAME", help="Name, such as task:1.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The Dockerfile; else CONTEXT/Dockerfile.")
    ] = None,
    build_arg: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Value of an ARG; repeatable.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Stage that is wanted.")] = None,
    allow: network_words.Allow = None,
    deny: network_words.Deny = None,
    network: network_words.Network = None,
) -> None:
    """Build an image, each step in a sandbox of its own, and print its id.

    \b
    cellwall images build -t task:1 .
    cellwall images build -t task:2 --allow mirror.example.org:80 .
    """
    from cellwall.apps.cli.one_program import network_of
    from cellwall.engine.images.builder import BuildRequest
    from cellwall.engine.images.builder import build as build_image

    request = BuildRequest(
        _source(file or context / "Dockerfile"),
        context,
        tag,
        dict(_argument(each) for each in build_arg or ()),
        target,
        network_of(allow, deny, network),
        on_event=_told,
    )
    stored = _with_engine(lambda engine: build_image(engine, request))
    typer.echo(stored.digest)


def _source(path: Path) -> bytes:
    from cellwall.images.dockerfile import MOST_BYTES
    from cellwall.model.errors import UsageError

    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"build: read {path}: {error.strerror}", remedy="name the Dockerfile with -f"
        ) from None


def _argument(text: str) -> tuple[str, str]:
    from cellwall.model.errors import UsageError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--build-arg {text[:60]!r} is not NAME=VALUE", remedy="give both")
    return name, value


def _told(event: BuildEvent) -> None:
    if event.kind == "output":
        sys.stderr.write(event.text)
    elif event.kind == "step":
        sys.stderr.write(f"line {event.line}: {event.text[:200]}\n")
    elif event.kind == "cached":
        sys.stderr.write("  done before\n")
    sys.stderr.flush()


@app.command("rm")
def remove(
    which: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Ids, their beginnings, or names.")
    ],
) -> None:
    """Remove images that no sandbox uses, and print their ids."""

    async def removed(store: ImageStore) -> list[str]:
        return [(await store.remove(name)).digest for name in which]

    for digest in _with_store(removed):
        typer.echo(digest)


def _facts(image: StoredImage) -> dict[str, Any]:
    return {
        "id": image.digest,
        "names": list(image.names),
        "size_bytes": image.size_bytes,
        "inodes": image.inodes,
        "unpacked_at": image.made_at,
        "user": image.config.user or "root",
        "working_dir": image.config.working_dir,
        "environment": dict(image.config.environment),
        "entrypoint": list(image.config.entrypoint),
        "command": list(image.config.command),
        "has_python": image.has_python,
        "skipped": dict(image.skipped),
    }


def _with_store(work: Callable[[ImageStore], Awaitable[T]]) -> T:
    return _with_engine(lambda engine: work(engine.images))


def _with_engine(work: Callable[[Engine], Awaitable[T]]) -> T:
    async def done() -> T:
        from cellwall.engine.engine import Engine

        engine = Engine()
        try:
            return await work(engine)
        finally:
            await engine.aclose()

    return asyncio.run(done())
