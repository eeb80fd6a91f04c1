"""`cellwall sweep`: remove what dead cellwall processes left on this machine.

Not needed in normal life: an engine cleans up after itself, and what a killed one leaves the next
one finds. Called by `main`. Invariant: what a living process owns is never touched; each runtime
asks the OS who is alive.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", short_help="Remove what killed processes left.")(sweep)


def sweep(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Remove leftovers of cellwall processes that were killed; 1 if some would not go."""
    reports = asyncio.run(_sweep())
    if as_json:
        shown = {
            name: {"removed": dict(report.removed), "kept": list(report.kept)}
            for name, report in reports.items()
        }
        typer.echo(json.dumps(shown, indent=2))
    else:
        for name, report in reports.items():
            removed = ", ".join(f"{n} {kind}" for kind, n in report.removed.items() if n)
            typer.echo(f"{name}: removed {removed or 'nothing'}")
            for item in report.kept:
                typer.echo(f"{name}: kept {item}")
    raise typer.Exit(1 if any(report.kept for report in reports.values()) else 0)


async def _sweep() -> dict[str, Any]:
    from cellwall.apps.engines import open_engine

    async with open_engine() as engine:
        return dict(await engine.sweep())
