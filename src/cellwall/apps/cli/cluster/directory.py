"""`cellwall cluster directory`: the database over which several gateways agree."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="The database over which several gateways agree.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _directory() -> None:
    """Keep `init` a command of its own."""


@app.command("init", short_help="Make the directory's tables, and a role for the gateways.")
def init(
    url: Annotated[
        str,
        typer.Argument(
            envvar="CELLWALL_DIRECTORY_OWNER",
            help="The database, as its owner: postgresql://OWNER@HOST/NAME.",
        ),
    ],
    role: Annotated[str, typer.Option(help="Role of the gateways.")] = "cellwall_gateway",
) -> None:
    """Make the directory's tables in a database of its own, or bring them to the newest version.

    Gateways come in under a role that can change rows there and nothing else; one that does not
    exist is made, without a password. Passwords are taken from PGPASSWORD or a password file, too.
    """
    import asyncio

    from cellwall.cluster.directory.schema import VERSION
    from cellwall.cluster.directory.schema import init as make

    is_new = asyncio.run(make(url, role))
    typer.echo(f"directory: its tables are of version {VERSION}")
    if is_new:
        typer.echo(f"role: {role} is new; give it a password with: ALTER ROLE {role} PASSWORD '…'")
    typer.echo(f"[gateway] directory = postgresql://{role}@HOST/NAME, on each gateway")
