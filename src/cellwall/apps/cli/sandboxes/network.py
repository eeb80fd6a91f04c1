"""`cellwall network`: where a sandbox on a server may connect to, and what it did.

Also `cellwall sandbox install`.

What may be reached is decided by the server's egress proxy. Invariant: what a script reads is on
stdout alone.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from cellwall.apps.cli.console.remote import AsJson, Key, Url, Which, connected, found
from cellwall.apps.cli.console.terminal import visible
from cellwall.apps.cli.one_program import network_of
from cellwall.apps.cli.words import network_words

app = typer.Typer(
    help="See and change where a sandbox on a server may connect to.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def log(which: Which, as_json: AsJson = False, url: Url = None, key: Key = None) -> None:
    """Print a sandbox's latest connections, packages and refusals, the oldest first.

    \b
    cellwall network log build
    cellwall network log build --json | jq '.[] | select(.event == "refused")'
    """
    with connected(url, key) as client:
        records = found(client, which).network_log()
        if as_json:
            typer.echo(json.dumps(records, indent=2))
            return
        from cellwall.apps.cli.console.table import show

        columns = ["TIME", "EVENT", "WHERE", "ADDRESS", "SENT", "RECEIVED", "RULE OR REASON"]
        show(columns, [_row(each) for each in records if each["event"] != "open"])


def _row(record: dict[str, Any]) -> list[str]:
    at = record.get("at")
    where = record.get("name") or f"{record.get('host') or '?'}:{record.get('port') or '?'}"
    times = record.get("times", 1)
    reason = str(record.get("rule", "")) + (f" ({times} times)" if times > 1 else "")
    return [
        "" if at is None else time.strftime("%H:%M:%S", time.localtime(at)),
        record["event"],
        visible(str(where)),
        visible(str(record.get("address", ""))),
        str(record.get("sent_bytes", "")),
        str(record.get("received_bytes", "")),
        visible(reason),
    ]


@app.command("show")
def show_policy(which: Which, as_json: AsJson = False, url: Url = None, key: Key = None) -> None:
    """Print a sandbox's network policy and what it used.

    \b
    cellwall network show build
    """
    with connected(url, key) as client:
        sandbox = found(client, which)
        policy, usage = sandbox.network, sandbox.network_usage()
        if as_json:
            counted = {name: getattr(usage, name) for name in usage.__slots__}
            typer.echo(json.dumps({"policy": policy.as_json(), "usage": counted}, indent=2))
            return
        typer.echo(visible(str(policy)))
        typer.echo(
            f"{usage.connections} connections, {usage.refused} refused, "
            f"{usage.sent_bytes} bytes sent, {usage.received_bytes} received"
        )


@app.command("set")
def set_policy(
    which: Which,
    allow: network_words.Allow = None,
    deny: network_words.Deny = None,
    network: network_words.Network = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Change a sandbox's network policy while it runs.

    \b
    cellwall network set build --allow example.org --allow 'db.example.net:5432'
    cellwall network set build --network open --deny 192.0.2.0/24 --deny '*.ads.example'
    cellwall network set build --network none
    """
    with connected(url, key) as client:
        typer.echo(visible(str(found(client, which).set_network(network_of(allow, deny, network)))))


def register(group: typer.Typer) -> None:
    """Add `install` to the commands of sandboxes."""
    group.command("install", short_help="Install Python packages into a sandbox.")(install)


def install(
    which: Which,
    packages: Annotated[list[str], typer.Argument(metavar="PACKAGE", help="Such as pandas>=2")],
    timeout: Annotated[float | None, typer.Option(help="Seconds; 120 without it.")] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Install Python packages into a sandbox, whose sessions import them at once.

    \b
    cellwall sandbox install build requests 'pandas>=2'
    """
    with connected(url, key) as client:
        for each in found(client, which).install(packages, timeout=timeout).packages:
            typer.echo(each)
