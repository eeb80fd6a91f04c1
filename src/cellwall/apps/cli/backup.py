"""`cellwall backup` and `cellwall restore`: the server's records, in one file.

Not templates, which are built again, and not the configuration, which is the operator's. Called
by `main`. Invariant: a backup disturbs no running server; a restore refuses while there is one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Config = Annotated[
    Path | None, typer.Option(envvar="CELLWALL_CONFIG", help="The server's settings, as TOML.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("backup", short_help="Copy the server's records, also while it runs.")(backup)
    app.command("restore", short_help="Take a backup back.")(restore)


def backup(
    file: Annotated[Path, typer.Argument(help="A new file.")],
    config: Config = None,
) -> None:
    """Copy the server's records to a file, as they are at one moment, also while it runs.

    Keys (their digests), executions, sandboxes and the audit. The copy is checked before it has
    its name, and readable for its owner only.
    """
    from cellwall.store.backup import is_unfinished, save

    store = _store(config)
    if is_unfinished(store):
        asyncio.run(_catch_up(store))
    size = save(store, file)
    typer.echo(f"{file}: {size / 2**20:.1f} MiB, checked")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `cellwall backup` wrote.")],
    config: Config = None,
) -> None:
    """Put a backup in the place of the server's records; the server must be stopped.

    What was there is kept beside it. What waited or ran when the backup was made may have run
    since: it is not run again, and its state becomes `interrupted`.
    """
    from cellwall.apps.state_lock import locked
    from cellwall.engine.templates.store import state_dir
    from cellwall.store.backup import restore as take_back

    store = _store(config)
    with locked(state_dir()):
        replaced = take_back(file, store)
    kept = "" if replaced is None else f"; what was there is {replaced}"
    typer.echo(f"{store}: restored{kept}")


async def _catch_up(store: Path) -> None:
    """Let the database have what a server that was killed wrote last."""
    from cellwall.apps.store_place import open_store

    await (await open_store(f"sqlite:///{store}")).aclose()


def _store(config: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    from cellwall.apps.cli.console.extras import check_server

    check_server()
    from cellwall.apps.settings_loader import load
    from cellwall.apps.store_place import store_url
    from cellwall.engine.templates.store import state_dir

    url = store_url(load(config, {}, environ).server, state_dir())
    prefix = "sqlite:///"
    if url is None or not url.startswith(prefix):
        raise UsageError(
            "backup: the records are not in a file of this machine",
            remedy="use what the database brings, pg_dump and pg_restore for PostgreSQL",
        )
    return Path(url.removeprefix(prefix))
