"""`cellwall serve`: the server, from flags.

Not the server (`apps.serve`). Called by `main`. Invariant: stdout carries the key, once, when it
was made, and one line `listening on …`; the log goes to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console.extras import check_server


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", short_help="Serve sandboxes over HTTP.")(serve)


def serve(  # noqa: PLR0913, PLR0917 - one parameter per option
    host: Annotated[
        str | None, typer.Option(help="Address to bind; default 127.0.0.1, this machine only.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; default 8080, 0 for any.")] = None,
    unix: Annotated[
        str | None, typer.Option(metavar="PATH", help="A unix socket instead of TCP.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Where templates and the key's digest lie.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="CELLWALL_CONFIG", help="Settings as TOML.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="PEM file of the certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file of its private key.")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="sqlite (in the state directory), a URL, or none: forget at the end.",
        ),
    ] = None,
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Keys may travel in plain text off this host.")
    ] = False,
    keep_sessions: Annotated[
        bool, typer.Option("--keep-sessions", help="Sandboxes outlive a restart of the server.")
    ] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make and print a new key; the old one is void.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve sandboxes over HTTP until stopped.

    Without a configuration it listens on this machine only, with a key it makes and prints once;
    CELLWALL_API_KEY brings one of your own. See docs/server.md.
    """
    check_server()
    from cellwall.apps.serve import Said, run
    from cellwall.apps.settings_loader import load
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.observability.logs import set_up

    _set_state_dir(state_dir)
    flags: dict[str, object] = {
        "host": host,
        "port": port,
        "unix": unix,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
    }
    flags |= {"store": store, "allow_plain": allow_plain or None}
    loaded = load(config, {**flags, "keep_sessions": keep_sessions or None})
    log = set_up(log_level, loaded.server.log_format)
    said = Said(
        on_ready=lambda address: typer.echo(f"listening on {address}"),
        on_door=lambda name, address: typer.echo(f"door {name} on {address}"),
        on_key=lambda key: typer.echo(
            f"key: {key}" if key else "key: the one printed at the first start (--new-key)"
        ),
        is_key_new=new_key,
        log=log,
    )
    try:
        run(loaded, KeyRing(loaded.keys), said)
    finally:
        log.close()


def _set_state_dir(path: Path | None) -> None:
    import os

    if path is not None:
        os.environ["CELLWALL_STATE_DIR"] = str(path.absolute())
