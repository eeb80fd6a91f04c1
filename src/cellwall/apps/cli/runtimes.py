"""`cellwall runtimes`: which isolation technologies there are, and what those lack that are not.

Not the choice (`engine.selection`). Called by `main`. Invariant: what is said is what the runtime's
own probe found on this host now.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cellwall.runtimes.base import Finding, Runtime


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("runtimes", short_help="List the isolation technologies.")(runtimes)


def runtimes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runtimes with their level, whether each can be had here, and how to get it."""
    rows = [_as_json(*found) for found in asyncio.run(_ask())]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from cellwall.apps.cli.table import show

    show(("runtime", "level", "available", "missing", "to get it"), map(_cells, rows))


async def _ask() -> list[tuple[Runtime, list[Finding], bool]]:
    from cellwall.engine.settings import EngineSettings
    from cellwall.engine.templates import state_dir
    from cellwall.runtimes import registry

    settings = EngineSettings.from_environment()
    found = []
    for name in registry.FACTORIES:
        is_allowed = name in settings.runtimes and (name != "process" or settings.allow_process)
        runtime = registry.create(name, state_dir())
        try:
            found.append((runtime, await runtime.probe(), is_allowed))
        finally:
            await runtime.aclose()
    return found


def _as_json(runtime: Runtime, findings: list[Finding], is_allowed: bool) -> dict[str, Any]:
    faults = [f for f in findings if f.grade == "FAIL"]
    return {
        "name": runtime.name,
        "level": runtime.level.label,
        "allowed": is_allowed,
        "available": is_allowed and not faults,
        "missing": [f"{f.feature}: {f.detail}" for f in faults],
        "remedies": [f.remedy for f in faults if f.remedy],
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    available = "yes" if row["available"] else "no" if row["allowed"] else "not allowed"
    return (
        row["name"],
        row["level"],
        available,
        "; ".join(row["missing"]),
        "; ".join(row["remedies"]),
    )
