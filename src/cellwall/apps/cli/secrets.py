"""`cellwall secrets`: set, list and remove the secrets that a server keeps, also while it runs.

Not how they are kept (`server.secrets`). Called by `main`. Invariant: a value is read from standard
input or a variable, never from the words of the command line, and is never printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cellwall.apps.cli.console import table
from cellwall.apps.cli.console.server_store import Config, Where, with_store
from cellwall.model.errors import UsageError
from cellwall.model.secret import PLACES, Secret

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.secrets.vault import Vault
    from cellwall.store.store import Store

T = TypeVar("T")

app = typer.Typer(
    help="Set, list and remove the secrets that a server keeps.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Tenant = Annotated[str, typer.Option(help="Whose secrets they are.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Variable inside with the placeholder.")]


@app.command("set")
def put(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host that gets the value, with :PORT unless it is 443; repeatable."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="env:VAR", help="A variable; else standard input."),
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(help="Where it may stand: header, query, basic; repeatable; else all."),
    ] = None,
    tenant: Tenant = "default",
    store: Where = None,
    config: Config = None,
) -> None:
    """Set a secret from standard input or a variable; its value is never shown again."""
    secret = Secret(name, _value(name, source), hosts=host or (), places=place or PLACES)
    _with_vault(store, config, lambda vault: vault.put(tenant, secret))
    typer.echo(f"{name} of {tenant} is set, for {', '.join(map(str, secret.hosts))}")


@app.command("ls")
def list_all(
    tenant: Tenant = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    store: Where = None,
    config: Config = None,
) -> None:
    """List a tenant's secrets, without their values."""
    found = _with_vault(store, config, lambda vault: vault.names(tenant))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    rows = [
        [each["name"], " ".join(each["hosts"]), " ".join(each["places"]), each["changed_at"]]
        for each in found
    ]
    table.show(("name", "hosts", "places", "changed_at"), rows)


@app.command("rm")
def remove(
    name: Name, tenant: Tenant = "default", store: Where = None, config: Config = None
) -> None:
    """Remove a secret; sandboxes that have it keep it until their end."""
    _with_vault(store, config, lambda vault: vault.remove(tenant, name))
    typer.echo(f"{name} of {tenant} is removed")


def _value(name: str, source: str | None) -> str:
    if source is None:
        return sys.stdin.read().removesuffix("\n").removesuffix("\r")
    kind, _, variable = source.partition(":")
    value = os.environ.get(variable) if kind == "env" else None
    if value is None:
        raise UsageError(
            f"secrets: {name}: --from names no variable of the environment",
            remedy="write --from env:VARIABLE, or give the value on standard input",
        )
    return value


def _with_vault(url: str | None, config: Path | None, work: Callable[[Vault], Awaitable[T]]) -> T:
    async def opened(store: Store, settings: ServerSettings) -> T:
        from cellwall.engine.templates.store import state_dir
        from cellwall.server.secrets.vault import Vault

        return await work(Vault(store, state_dir(), settings.secrets_key_file))

    return with_store("secrets", url, config, opened)
