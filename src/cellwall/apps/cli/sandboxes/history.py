"""`cellwall sandbox checkpoint`, `diff`, `rollback`: the history of a sandbox's work area.

Called by `group`. Invariant: what a script reads (an id, JSON, a unified diff) is on stdout alone,
and names from inside reach a terminal only as visible characters.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cellwall.apps.cli.console.remote import AsJson, Key, Url, Which, connected, found
from cellwall.apps.cli.console.terminal import complain, visible

if TYPE_CHECKING:
    from cellwall.model.history import FileChange

_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R"}
Since = Annotated[
    str | None, typer.Option(metavar="CHECKPOINT", help="From that one; by default the latest.")
]
Until = Annotated[
    str | None, typer.Option(metavar="CHECKPOINT", help="To that one; by default to now.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("checkpoint", short_help="Keep a sandbox's files as they are.")(checkpoint)
    app.command("diff", short_help="Show what changed since a checkpoint.")(diff)
    app.command("rollback", short_help="Make a sandbox's files what they were.")(rollback)


def checkpoint(  # noqa: PLR0913, PLR0917 - one parameter per option
    which: Which,
    name: Annotated[str | None, typer.Option(help="A name to know it by.")] = None,
    list_all: Annotated[bool, typer.Option("--list", "-l", help="List what there is.")] = False,
    drop: Annotated[str | None, typer.Option(metavar="CHECKPOINT", help="Forget that one.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Keep a sandbox's files as they are now, and print the checkpoint's id.

    \b
    id=$(cellwall sandbox checkpoint build)
    cellwall sandbox checkpoint build --list
    cellwall sandbox checkpoint build --drop $id
    """
    with connected(url, key) as client:
        files = found(client, which).files
        if drop is not None:
            files.drop(drop)
        elif not list_all:
            made = files.checkpoint(name)
            for path in made.unsteady:
                complain(f"changed while it was read: {_shown(path)}")
            typer.echo(json.dumps(asdict(made), indent=2) if as_json else made.id)
        elif as_json:
            typer.echo(json.dumps([asdict(each) for each in files.checkpoints()], indent=2))
        else:
            from cellwall.apps.cli.console.table import show

            rows = [
                [each.id, visible(each.name or ""), str(each.files), str(each.bytes)]
                for each in files.checkpoints()
            ]
            show(["ID", "NAME", "FILES", "BYTES"], rows)


def diff(  # noqa: PLR0913, PLR0917 - one parameter per option
    which: Which,
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="A file, shown as a unified diff.")
    ] = None,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """List what changed since a checkpoint, or show how one file changed.

    Letters: A added, M modified, D deleted, R renamed.

    \b
    cellwall sandbox diff build
    cellwall sandbox diff build main.py
    cellwall sandbox diff build --since $id --json
    """
    with connected(url, key) as client:
        files = found(client, which).files
        if path is not None:
            text = files.diff_text(path, since, until)
            typer.echo("".join(f"{visible(line)}\n" for line in text.splitlines()), nl=False)
            return
        changes = files.diff(since, until)
        if as_json:
            typer.echo(json.dumps([asdict(each) for each in changes], indent=2))
            return
        for each in changes:
            typer.echo(_line(each))


def _line(change: FileChange) -> str:
    name = _shown(change.path) + ("/" if change.type == "directory" else "")
    old = f"{_shown(change.old_path)} -> " if change.old_path is not None else ""
    return f"{_LETTERS[change.kind]} {old}{name}"


def _shown(path: str) -> str:
    """Return a path from inside as text; bytes that are no UTF-8 are escaped."""
    return visible(path.encode("utf-8", "backslashreplace").decode())


def rollback(
    which: Which,
    checkpoint_id: Annotated[
        str | None, typer.Argument(metavar="[CHECKPOINT]", help="By default the latest.")
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Make a sandbox's files what they were at a checkpoint; what was added since is removed.

    Nothing may be running in it. Variables of its contexts stay as they are.

    \b
    cellwall sandbox rollback build
    """
    with connected(url, key) as client:
        files = found(client, which).files
        if checkpoint_id is None:
            known = files.checkpoints()
            checkpoint_id = known[-1].id if known else "latest"
        done = files.rollback(checkpoint_id)
    for path in done.left_out:
        complain(f"cannot be made again: {_shown(path)}")
    typer.echo(f"{done.restored} made again, {done.removed} removed")
