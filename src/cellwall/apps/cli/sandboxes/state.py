"""`cellwall sandbox fork`, `snapshot`, `snapshots`, `restore`: copies of live sandboxes.

Called by `group`. Invariant: what a script reads (ids, JSON) is on stdout alone; what a copy has
not is said on stderr.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cellwall.apps.cli.console.remote import AsJson, Key, Url, Which, connected, found
from cellwall.apps.cli.console.terminal import complain, visible
from cellwall.model.snapshot import Scope

if TYPE_CHECKING:
    from cellwall.model.snapshot import Threads

Reseed = Annotated[
    bool, typer.Option(help="Seed the random generators that programs share anew, or keep them.")
]
Tree = Annotated[
    bool, typer.Option("--tree", help="Refuse unless every process comes along, as in gVisor.")
]
DropThreads = Annotated[
    bool,
    typer.Option(
        "--drop-threads", help="Leave threads of the session behind, instead of refusing."
    ),
]
Snapshot = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id, or its name.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("fork", short_help="Copy a sandbox while it lives.")(fork)
    app.command("snapshot", short_help="Keep a sandbox as it is now.")(snapshot)
    app.command("snapshots", short_help="List or delete what is kept.")(snapshots)
    app.command("restore", short_help="Make a sandbox of a snapshot.")(restore)


def fork(  # noqa: PLR0913, PLR0917 - each is an option of the command
    which: Which,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 1,
    reseed: Reseed = True,
    tree: Tree = False,
    drop_threads: DropThreads = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Copy a sandbox, its Python session and its files, and print the copies' ids.

    \b
    cellwall sandbox fork build
    for id in $(cellwall sandbox fork build -n 4); do cellwall sandbox exec $id -- make test; done
    """
    with connected(url, key) as client:
        forks = found(client, which).fork(
            count, reseed=reseed, scope=_scope(tree), threads=_threads(drop_threads)
        )
        for each in forks:
            if each.made is not None:
                typer.echo(each.made.id)
        _say_left(forks[0].left_behind)
        failed = [each.error for each in forks if each.error is not None]
        if failed:
            raise failed[0]


def snapshot(  # noqa: PLR0913, PLR0917 - each is an option of the command
    which: Which,
    name: Annotated[str | None, typer.Option(help="A name to find it by.")] = None,
    expires: Annotated[
        float, typer.Option(metavar="SECONDS", help="When it is deleted.")
    ] = 86_400.0,
    tree: Tree = False,
    drop_threads: DropThreads = False,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Keep a sandbox's Python session and files as they are now, and print the snapshot's id.

    \b
    cellwall sandbox snapshot build --name prepared
    """
    with connected(url, key) as client:
        made = found(client, which).snapshot(
            name, expires_s=expires, scope=_scope(tree), threads=_threads(drop_threads)
        )
    _say_left(made.left_behind)
    typer.echo(json.dumps(asdict(made), indent=2) if as_json else made.id)


def snapshots(
    delete: Annotated[
        str | None, typer.Option(metavar="SNAPSHOT", help="Delete that one instead.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """List your snapshots, the oldest first.

    \b
    cellwall sandbox snapshots
    cellwall sandbox snapshots --delete prepared
    """
    with connected(url, key) as client:
        if delete is not None:
            client.snapshots.delete(delete)
            return
        kept = client.snapshots.list()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in kept], indent=2))
        return
    from cellwall.apps.cli.console.table import show

    rows = []
    for each in kept:
        size_mb = (each.memory_bytes + each.files_bytes) / 2**20
        left_s = max(0, round(each.expires_at - time.time()))
        rows.append([each.id, each.name, each.template, f"{size_mb:.1f}", str(left_s)])
    show(["ID", "NAME", "TEMPLATE", "MIB", "SECONDS LEFT"], rows)


def restore(
    snapshot: Snapshot,
    reseed: Reseed = True,
    url: Url = None,
    key: Key = None,
) -> None:
    """Make a new sandbox that is the session of a snapshot, and print its id.

    \b
    id=$(cellwall sandbox restore prepared)
    """
    with connected(url, key) as client:
        typer.echo(client.restore(snapshot, reseed=reseed).id)


def _scope(tree: bool) -> Scope | None:
    return "tree" if tree else None


def _threads(drop: bool) -> Threads:
    return "drop" if drop else "refuse"


def _say_left(left: tuple[str, ...]) -> None:
    for each in left:
        complain(f"not copied: {visible(each)}")
