"""`cellwall volumes`: make, list, copy and remove volumes, and move files in and out of them.

Not the store (`engine.volumes`). Called by `commands`. Invariant: what a script reads (a name,
JSON) is on stdout alone; files come and go through a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.volumes.volume_store import VolumeStore

T = TypeVar("T")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the volume.")]

app = typer.Typer(
    help="Make, list, copy and remove files that outlive sandboxes.", rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def without_command(context: typer.Context) -> None:
    """Make, list, copy and remove volumes; without a command, list them."""
    if context.invoked_subcommand is None:
        list_all()


@app.command("ls")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the volumes on this machine; what is used is as of the last sandbox's end."""
    volumes = _store().volumes()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in volumes], indent=2))
        return
    from cellwall.apps.cli.console.table import show

    rows = [
        (
            each.name,
            str(each.size_mb),
            str(-(-each.used_bytes >> 20)),
            str(each.inodes),
            str(each.used_inodes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created_at)),
        )
        for each in volumes
    ]
    show(("name", "MiB", "used", "inodes", "used", "made"), rows)


@app.command("create", short_help="Make an empty volume.")
def create(
    name: Name,
    size: Annotated[int, typer.Option(help="MiB for files in it.")] = 1024,
    inodes: Annotated[
        int | None, typer.Option(help="Files and directories; default: one for 16 KiB.")
    ] = None,
) -> None:
    """Make an empty volume and print its name.

    \b
    cellwall volumes create data --size 512
    """
    typer.echo(_store().create(name, size, inodes).name)


@app.command("copy", short_help="Make a volume with the content of another.")
def copy(source: Name, target: Annotated[str, typer.Argument(metavar="NEW")]) -> None:
    """Make a volume with the content that another has now, and print its name."""
    typer.echo(_store().copy(source, target).name)


@app.command("rm")
def remove(
    which: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of volumes.")],
) -> None:
    """Remove volumes that no sandbox uses, with all that is in them, and print their names."""
    for name in which:
        _store().remove(name)
        typer.echo(name)


@app.command("put", short_help="Copy a file or a directory into a volume.")
def put(
    local: Annotated[str, typer.Argument(metavar="SOURCE", help="A path of this machine.")],
    target: Annotated[str, typer.Argument(metavar="NAME:PATH", help="Where it goes.")],
) -> None:
    """Copy a file or a directory into a volume that no sandbox uses.

    \b
    cellwall volumes put data.csv data:
    cellwall volumes put src/ data:work
    """
    name, path = _place(target)

    async def sent(engine: Engine) -> None:
        from cellwall.engine.volumes.content import Content

        await Content(engine).put(name, local, path)

    _with_engine(sent)


@app.command("get", short_help="Copy a file or a directory out of a volume.")
def get(
    source: Annotated[str, typer.Argument(metavar="NAME:PATH", help="What is wanted.")],
    local: Annotated[str, typer.Argument(metavar="TARGET", help="A path of this machine.")],
) -> None:
    """Copy a file or a directory out of a volume that no sandbox writes to.

    \b
    cellwall volumes get data:report.pdf /tmp/
    cellwall volumes get data:work work
    """
    name, path = _place(source)
    place = Path(local)
    if (local.endswith("/") or place.is_dir()) and path.strip("/"):
        place /= path.rstrip("/").rpartition("/")[2]

    async def fetched(engine: Engine) -> None:
        from cellwall.engine.volumes.content import Content

        await Content(engine).get(name, path, place)

    _with_engine(fetched)


def _place(word: str) -> tuple[str, str]:
    name, colon, path = word.partition(":")
    if not colon:
        raise UsageError(f"volumes: {word!r} is not NAME:PATH", remedy="write it data:work/x")
    return name, path


def _store() -> VolumeStore:
    from cellwall.apps.engines import state
    from cellwall.engine.volumes.volume_store import VolumeStore

    return VolumeStore(state())


def _with_engine(work: Callable[[Engine], Awaitable[T]]) -> T:
    from cellwall.apps.cli.console.built_template import built

    built("python")

    async def done() -> T:
        from cellwall.apps.engines import open_engine

        async with open_engine(answers_first=True) as engine:
            return await work(engine)

    return asyncio.run(done())
