"""`cellwall keys`: make, list and revoke API keys, also while the server runs.

Not how a key is checked (`server.auth.keys`). Called by `main`. Invariant: stdout of `create` is
the key alone, shown this once; no other command can show it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cellwall.apps.cli.console import table
from cellwall.apps.cli.console.server_store import Config, Where, with_store
from cellwall.apps.cli.console.terminal import complain
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.store.records.rows import KeyRow
    from cellwall.store.store import Store

T = TypeVar("T")
Directory = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Directory of a cluster's gateways, in the store's place."),
]
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LIFE = re.compile(r"([0-9]{1,6})([smhdw])")

app = typer.Typer(
    help="Make, list and revoke API keys, also while the server runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("create")
def create(  # noqa: PLR0913, PLR0917 - one parameter per option
    tenant: Annotated[str, typer.Option(help="Whose key it is.")] = "default",
    scope: Annotated[str, typer.Option(help="run, manage or admin.")] = "run",
    name: Annotated[str | None, typer.Option(help="What it is for; for your own eyes.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="LIFE", help="90s, 30m, 12h, 30d or 4w; else never.")
    ] = None,
    store: Where = None,
    config: Config = None,
    directory: Directory = None,
) -> None:
    """Make a key and print it, this once."""
    life_s = None if expires is None else life(expires)

    async def made(opened: Store) -> tuple[KeyRow, str]:
        from cellwall.server.auth import stored_keys

        return await stored_keys.create(opened, tenant, scope, name, life_s)

    if directory is None:
        row, key = _with_store(store, config, made)
    else:
        from cellwall.apps.cluster import directory_keys

        row, key = directory_keys.create(directory, tenant, scope, name, life_s)
    from cellwall.server.auth.keys import in_e2b_form

    until = "until it is revoked" if row.expires_at is None else f"until {_time(row.expires_at)}"
    complain(f"key {row.digest[:12]} of {tenant}, scope {scope}, {until}; it is not shown again")
    complain(f"the same key as E2B's clients take it: {in_e2b_form(key)}")
    typer.echo(key)


@app.command("ls")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    store: Where = None,
    config: Config = None,
    directory: Directory = None,
) -> None:
    """List the keys of the store, also the revoked ones; never the keys themselves."""

    async def listed(opened: Store) -> list[KeyRow]:
        return await opened.keys()

    if directory is None:
        rows = _with_store(store, config, listed)
    else:
        from cellwall.apps.cluster import directory_keys

        rows = directory_keys.rows(directory)
    found = [_shown(row) for row in rows]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    columns = ("id", "tenant", "scope", "name", "created_at", "expires_at", "state")
    table.show(columns, [[str(each[name] or "") for name in columns] for each in found])


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `cellwall keys ls` shows it.")],
    store: Where = None,
    config: Config = None,
    directory: Directory = None,
) -> None:
    """Revoke a key; a running server, and every gateway, refuses it within a second."""

    async def revoked(opened: Store) -> KeyRow:
        from cellwall.server.auth import stored_keys

        return await stored_keys.revoke(opened, key_id)

    if directory is None:
        is_new = _with_store(store, config, revoked).revoked_at is None
    else:
        from cellwall.apps.cluster import directory_keys

        is_new = directory_keys.revoke(directory, key_id)
    typer.echo(f"{key_id} revoked" if is_new else f"{key_id} had been revoked")


def life(text: str) -> float:
    """Return the seconds of `30d`; `UsageError` for anything else."""
    found = _LIFE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"keys: --expires {text!r} is not a length of time",
            remedy="give a number and one of s, m, h, d, w: 30d",
        )
    return float(int(found[1]) * _UNITS_S[found[2]])


def _with_store(url: str | None, config: Path | None, work: Callable[[Store], Awaitable[T]]) -> T:
    return with_store("keys", url, config, lambda store, _settings: work(store))


def _shown(row: KeyRow) -> dict[str, Any]:
    from cellwall.server.auth.key_facts import shown

    state = "accepted"
    if row.revoked_at is not None:
        state = "revoked"
    elif row.expires_at is not None and row.expires_at <= time.time():
        state = "expired"
    return {**shown(row), "state": state}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
