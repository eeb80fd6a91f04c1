"""`cellwall cluster doctor`: what is wrong with a cluster, and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console.extras import check_server
from cellwall.apps.cli.console.remote import AsJson


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", short_help="Say what is wrong with a cluster, and how to mend it.")(
        doctor
    )


def doctor(
    config: Annotated[
        Path, typer.Option(envvar="CELLWALL_CONFIG", help="Settings of a gateway, with [gateway].")
    ],
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a cluster and how to mend it; 1 if something FAILs.

    Run it where a gateway runs, with its settings: it looks at its certificates, and asks each node
    for its name, certificate, clock, version and fence. It changes nothing.
    """
    check_server()
    import asyncio
    import json
    from dataclasses import asdict

    from cellwall.apps.cli.console.table import show
    from cellwall.apps.cluster.doctor import findings
    from cellwall.apps.cluster.settings import gateway_settings

    found = asyncio.run(findings(gateway_settings(config)))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        rows = [(each.grade, each.feature, each.detail, each.remedy) for each in found]
        show(("grade", "of", "found", "to mend it"), rows)
    raise typer.Exit(1 if any(each.grade == "FAIL" for each in found) else 0)
