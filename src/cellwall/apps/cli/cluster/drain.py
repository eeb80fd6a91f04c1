"""`cellwall cluster drain` and `undrain`: a node takes nothing new, or takes it again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cellwall.apps.cli.console.remote import Key, Url, connected

if TYPE_CHECKING:
    from cellwall.client.blocking import Client

_LOOK_S = 1.0
_Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("drain", short_help="Have a node take nothing new.")(drain)
    app.command("undrain", short_help="Have a drained node take new work again.")(undrain)


def drain(
    node: _Node,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return once nothing is left on the node.")
    ] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Have a node take nothing new: programs end, sandboxes live for the node's drain_s.

    The process stays, also when the node is empty: SIGTERM drains it, too, and ends it then. The
    key needs the scope `admin`.
    """
    with connected(url, key) as client:
        left = client.drain(node)["left"]
        typer.echo(f"{node}: {left['executions']} executions, {left['sandboxes']} sandboxes left")
        while wait and _left(client, node):
            time.sleep(_LOOK_S)
    if wait:
        typer.echo(f"{node}: nothing is left")


def undrain(node: _Node, url: Url = None, key: Key = None) -> None:
    """Have a drained node take new work again. The key needs the scope `admin`."""
    with connected(url, key) as client:
        client.undrain(node)
    typer.echo(f"{node}: it takes new work")


def _left(client: Client, node: str) -> bool:
    """Report whether anything may be left on a node: one that is lost has nothing."""
    for each in client.nodes():
        if each["name"] == node and each["state"] != "lost":
            return bool(each["state"] == "unreachable" or each["left"] > 0)
    return False
