"""`cellwall sweep`: remove what dead cellwall processes left on this machine.

Not needed in normal life: an engine cleans up after itself, and what a killed one leaves the next
one finds. Called by `main`. Invariant: what a living process owns is never touched; each runtime
asks the OS who is alive.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cellwall.runtimes.base import SweepReport


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", short_help="Remove what killed processes left.")(sweep)


def sweep(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Remove leftovers of cellwall processes that were killed; 1 if some would not go."""
    report = asyncio.run(_sweep())
    if as_json:
        shown = {"removed": dict(report.removed), "kept": list(report.kept)}
        typer.echo(json.dumps(shown, indent=2))
    else:
        removed = ", ".join(f"{count} {kind}" for kind, count in report.removed.items() if count)
        typer.echo(f"removed: {removed or 'nothing'}")
        for item in report.kept:
            typer.echo(f"kept: {item}")
    raise typer.Exit(1 if report.kept else 0)


async def _sweep() -> SweepReport:
    from cellwall.apps.engines import open_engine

    async with open_engine() as engine:
        return await engine.sweep()
