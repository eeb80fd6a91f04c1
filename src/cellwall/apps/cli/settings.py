"""`cellwall settings`: every setting with its default, and a check of a file before it is used.

Not the settings (`apps.cli.settings_reference`, `apps.settings_loader`). Called by `main`.
Invariant: a check says what `cellwall serve` would say to the same file, and starts nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List settings, check a file of them.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def settings(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every setting of the server: its name, variable, flag, default and meaning."""
    if context.invoked_subcommand is not None:
        return
    from cellwall.apps.cli.console.extras import check_server

    check_server()
    from cellwall.apps.cli.settings_reference import reference

    if as_json:
        typer.echo(json.dumps([asdict(each) for each in reference()], indent=2))
        return
    from cellwall.apps.cli.console.table import show

    rows = [(e.section, e.name, e.kind, e.default, e.meaning) for e in reference()]
    show(("section", "name", "kind", "default", "meaning"), rows)


@app.command("check", short_help="Check a file as `cellwall serve --config` would.")
def check(
    file: Annotated[Path, typer.Argument(help="The settings as TOML.")],
) -> None:
    """Check a settings file, together with the environment, as `cellwall serve --config` would.

    An unknown name, a value of the wrong kind, an address that keys would travel to in plain text:
    125 and a word on what to change.
    """
    from cellwall.apps.cli.console.extras import check_server

    check_server()
    from cellwall.apps.exposure import check_exposure
    from cellwall.apps.metrics_listener import check_metrics_exposure
    from cellwall.apps.settings_loader import load

    loaded = load(file, {})
    check_exposure(loaded.server, has_own_keys=True)  # they may be in the store
    check_metrics_exposure(loaded.server)
    typer.echo(f"{file}: good")
