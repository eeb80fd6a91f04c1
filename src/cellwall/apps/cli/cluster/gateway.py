"""`cellwall gateway`: the front of a cluster, from flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console.extras import check_server


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway", short_help="Pass requests to the nodes of a cluster.")(gateway)


def gateway(
    config: Annotated[
        Path, typer.Option(envvar="CELLWALL_CONFIG", help="Settings as TOML, with [gateway].")
    ],
    host: Annotated[str | None, typer.Option(help="Address to bind; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; default 8080, 0 for any.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Pass the requests of callers to the nodes of a cluster until stopped.

    Keys, tiers and tenants are those of the configuration, as a server has them; [gateway] names
    the nodes. See docs/cluster.md.
    """
    check_server()
    from cellwall.apps.cluster.gateway import run
    from cellwall.apps.cluster.settings import gateway_settings
    from cellwall.apps.settings_loader import load
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.observability.logs import set_up

    settings = gateway_settings(config)
    loaded = load(config, {"host": host, "port": port})
    log = set_up(log_level, loaded.server.log_format)
    try:
        run(
            settings,
            loaded.server,
            KeyRing(loaded.keys),
            lambda address: typer.echo(f"listening on {address}"),
            lambda: gateway_settings(config),
        )
    finally:
        log.close()
