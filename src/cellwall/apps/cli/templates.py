"""`cellwall templates`: list, build and remove what sandboxes are made from.

Not the store (`engine.templates.store`). Called by `commands`. Invariant: progress goes to stderr,
and so do complaints.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.apps.cli import own_templates
from cellwall.apps.cli.console.built_template import progress, store
from cellwall.apps.cli.console.remote import Key, Url
from cellwall.apps.cli.console.terminal import complain
from cellwall.model.outcome import OUR_FAILURE

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate, Template

_TRIAL_S = 60.0

Own = Annotated[bool, typer.Option("--own", help="Templates that your tenant builds on a server.")]
app = typer.Typer(help="List, build and remove templates.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def without_command(context: typer.Context) -> None:
    """List, build and remove templates; without a command, list them."""
    if context.invoked_subcommand is None:
        list_all()


@app.command("ls")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    own: Own = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """List the templates, built or not, with what they hold and their size on disk."""
    if own:
        own_templates.list_all(url, key, as_json=as_json)
        return
    templates = store()
    rows = [
        (name, definition, templates.find(name))
        for name, definition in sorted(templates.definitions().items())
    ]
    if as_json:
        typer.echo(json.dumps([_as_json(*row) for row in rows], indent=2))
        return
    from cellwall.apps.cli.console.table import show

    show(
        ("template", "built", "MiB on disk", "what", "packages"),
        [
            (
                name,
                found.digest[:12] if found else "no",
                str(found.size_bytes >> 20) if found else "",
                definition.description,
                ", ".join(map(_name, definition.packages)) or "(none)",
            )
            for name, definition, found in rows
        ],
    )


def _name(requirement: str) -> str:
    """Return the package's name; all pins together would fill a screen, and are in the JSON."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _as_json(name: str, definition: Template, found: BuiltTemplate | None) -> dict[str, Any]:
    return {
        "name": name,
        "description": definition.description,
        "packages": list(definition.packages),
        "preload": list(definition.preload),
        "digest": found.digest if found else None,
        "path": str(found.path) if found else None,
        "size_bytes": found.size_bytes if found else None,
    }


@app.command("build")
def build(  # noqa: PLR0913, PLR0917 - each is an option of its own
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    runtime: Annotated[
        str, typer.Option(help="Get them ready for this runtime: `docker` makes an image.")
    ] = "jail",
    own: Own = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="With --own: the Dockerfile; default: CONTEXT/Dockerfile."
        ),
    ] = None,
    context: Annotated[
        Path | None, typer.Option(help="With --own: the directory whose files COPY copies.")
    ] = None,
    network: Annotated[
        str, typer.Option(help="With --own: `none`, `packages` or `open`, for the steps.")
    ] = "none",
    argument: Annotated[
        list[str] | None,
        typer.Option("--build-arg", metavar="NAME=VALUE", help="With --own: a value of ARG."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With --own: the stage that is wanted.")
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Build templates, and try each once in a sandbox; one built and unchanged is left as it is.

    With --own a template of yours is built on a server, from a Dockerfile; ^C cancels the build.

    \b
    cellwall templates build task:1 --own --context .

    Ends with 125 if a sandbox of one of them cannot start, as where a module of its preload list
    starts a thread.
    """
    from cellwall.model.errors import UsageError
    from cellwall.runtimes.registry import FACTORIES

    if own:
        wanted = own_templates.Wanted(names, file, context, network, argument, target)
        own_templates.build(url, key, wanted)
        return

    if runtime not in FACTORIES:
        raise UsageError(
            f"templates build: there is no runtime {runtime!r}",
            remedy=f"runtimes: {', '.join(FACTORIES)}; only Docker's need something of their own",
        )
    templates, failed = store(), False
    for name in names:
        made = templates.build(name, progress)
        typer.echo(f"{name} {made.digest[:12]} {made.size_bytes >> 20} MiB {made.path}")
        if runtime.startswith("docker"):
            typer.echo(f"{name} {asyncio.run(_image(made))}")
        if not templates.has_started(made, runtime):
            failed |= not asyncio.run(_starts(name, runtime))
    if failed:
        raise typer.Exit(OUR_FAILURE)


async def _starts(name: str, runtime: str) -> bool:
    """Have a sandbox of it run a program, and another one a cell; say why that failed, if it did.

    Where that runtime is not available nothing is said of the template: it may be for another host.
    """
    from cellwall.apps.engines import open_engine
    from cellwall.model.errors import CellwallError

    async with open_engine() as engine:
        try:
            await engine.runtime(name=runtime)
        except CellwallError as error:
            complain(f"template {name}: not tried, runtime {runtime} is not available: {error}")
            return True
        try:
            await engine.run("0", template=name, timeout=_TRIAL_S, runtime=runtime)
            sandbox = await engine.create_sandbox(template=name, runtime=runtime)
            await sandbox.run("0", timeout=_TRIAL_S)
        except CellwallError as error:
            complain(f"template {name} is built, and no sandbox of it can start: {error}")
            return False
        store().note_start(await engine.template(name), runtime)
    return True


async def _image(made: BuiltTemplate) -> str:
    """Have the template's image in the Docker daemon; return its id."""
    from cellwall.engine.templates.store import state_dir
    from cellwall.runtimes.docker.daemon import Daemon
    from cellwall.runtimes.docker.images import Images

    daemon = Daemon()
    try:
        return await Images(state_dir(), daemon).ensure(made, progress)
    finally:
        daemon.close()


@app.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    own: Own = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Remove built templates, and images made of them; their definitions stay."""
    if own:
        own_templates.remove(url, key, names)
        return
    templates = store()
    for name in names:
        count = asyncio.run(_remove_images(name))
        templates.remove(name)
        images = f" with {count} images" if count else ""
        sys.stderr.write(f"{name}: removed{images}\n")


async def _remove_images(name: str) -> int:
    """Where there is a Docker daemon; there may never have been one."""
    from cellwall.engine.templates.store import state_dir
    from cellwall.runtimes.docker.images import Images

    if not (state_dir() / "docker").is_dir():
        return 0
    from cellwall.runtimes.docker.daemon import Daemon

    daemon = Daemon()
    try:
        return await Images(state_dir(), daemon).remove(name)
    finally:
        daemon.close()
