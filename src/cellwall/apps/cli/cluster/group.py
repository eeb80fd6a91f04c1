"""`cellwall cluster`: the cluster's authority and certificates, and how its nodes are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console.remote import AsJson, Key, Url, connected

app = typer.Typer(
    help="The authority of a cluster, its certificates, and how its nodes are.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_FOLDER = Annotated[Path, typer.Argument(help="Folder of the cluster's authority.")]


@app.command("init", short_help="Make the authority of a new cluster.")
def init(folder: _FOLDER) -> None:
    """Make the authority of a new cluster in a folder of its own.

    Its key stays there: nodes and gateways need `authority.pem` alone.
    """
    from cellwall.cluster.certificates import make_authority

    files = make_authority(folder)
    typer.echo(f"authority: {files.certificate} (goes to every node and gateway)")
    typer.echo(f"its key: {files.key} (stays here)")


@app.command("cert", short_help="Give a node or a gateway its certificate.")
def cert(
    folder: _FOLDER,
    name: Annotated[str, typer.Argument(help="Name of its files, as node-1.")],
    address: Annotated[
        list[str] | None,
        typer.Option(help="Address or name at which gateways reach a node; once for each."),
    ] = None,
    any_address: Annotated[
        bool, typer.Option("--any-address", help="Gateways find the node, as in Kubernetes.")
    ] = False,
    gateway: Annotated[bool, typer.Option("--gateway", help="It is for a gateway.")] = False,
) -> None:
    """Give a node, by its addresses, or a gateway its certificate, for a year."""
    from cellwall.cluster.certificates import ANY_ADDRESS, issue_gateway, issue_node

    if gateway:
        files = issue_gateway(folder, name)
    else:
        anywhere = [ANY_ADDRESS] if any_address else []
        files = issue_node(folder, name, (*(address or ()), *anywhere))
    typer.echo(f"certificate: {files.certificate}")
    typer.echo(f"key: {files.key}")


@app.command("status", short_help="Show the nodes as a gateway knows them.")
def status(url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show the nodes as a gateway knows them: names, states, its requests to them.

    The key needs the scope `admin`.
    """
    import json

    from cellwall.apps.cli.console.table import show

    with connected(url, key) as client:
        nodes = client.nodes()
    if as_json:
        typer.echo(json.dumps(nodes, indent=2))
        return
    columns = ("name", "state", "address", "in_flight", "why")
    show(columns, [tuple(str(each.get(column, "")) for column in columns) for each in nodes])
