"""`cellwall demo`: the command in front of `cellwall.apps.cli.demo_scenes`.

Called by `main` and `make run`. Invariant: it ends by itself, and its status is 0 only if every
step did what it said.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console.terminal import complain


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", short_help="Show what it does, in under a minute.")(demo)


def demo(
    examples: Annotated[
        Path | None, typer.Option(help="The folder of examples; default: the clone's own.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where the chart goes.")] = Path("demo-output"),
    isolation: Annotated[
        str, typer.Option(help="Weakest acceptable level: process, namespace, kernel or vm.")
    ] = "namespace",
) -> None:
    """Show what cellwall does, on real input and against hostile programs, in under a minute."""
    from cellwall.apps.cli.console.built_template import built
    from cellwall.apps.cli.demo_scenes import Demo, DemoFailure, find_examples

    folder = find_examples(examples)
    for template in ("python", "data"):
        built(template)
    try:
        asyncio.run(Demo(folder, output, isolation).run())
    except DemoFailure as failure:
        complain(f"demo: {failure}")
        raise typer.Exit(1) from failure
