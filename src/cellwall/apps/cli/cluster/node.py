"""`cellwall node`: one machine of a cluster, from flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console.extras import check_server


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("node", short_help="Serve sandboxes to the gateways of a cluster.")(node)


def node(
    config: Annotated[
        Path, typer.Option(envvar="CELLWALL_CONFIG", help="Settings as TOML, with [node].")
    ],
    state_dir: Annotated[
        Path | None, typer.Option(help="Where templates, the store and the node's name lie.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve sandboxes to the gateways of a cluster until stopped.

    It listens at [server] host and port for gateways alone, whose certificates the cluster's
    authority gave. A node that no gateway hears for fence_s ends its sandboxes and takes a new
    name. See docs/cluster.md.
    """
    check_server()
    from cellwall.apps.cluster.node import guarded, named, serve_as_node
    from cellwall.apps.cluster.settings import node_settings
    from cellwall.apps.node_name import draw
    from cellwall.apps.serve import Said
    from cellwall.apps.settings_loader import load
    from cellwall.engine.templates.store import state_dir as default_state_dir
    from cellwall.server.observability.logs import set_up

    if state_dir is not None:
        os.environ["CELLWALL_STATE_DIR"] = str(state_dir.absolute())
    settings = node_settings(config)
    loaded = named(load(config, {}))
    folder = default_state_dir()

    def serve(beats: int) -> None:
        log = set_up(log_level, loaded.server.log_format)
        said = Said(
            on_ready=lambda address: typer.echo(f"node listening on {address}"),
            log=log,
        )
        try:
            serve_as_node(settings, loaded, said, beats)
        finally:
            log.close()

    raise typer.Exit(guarded(settings, serve, lambda: draw(folder)))
