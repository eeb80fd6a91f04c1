"""`cellwall runtimes`: which isolation technologies there are, and what those lack that are not.

Not the choice (`engine.policy.selection`). Called by `main`. Invariant: what is said is what the
runtime's own probe found on this host now, and with `--measure` what real starts took.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cellwall.engine.policy.offers import Offer

_STARTS = 5
_TEMPLATE = "python"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("runtimes", short_help="List the isolation technologies.")(runtimes)


def runtimes(
    measure: Annotated[
        bool, typer.Option("--measure", help="Start some sandboxes of each and say how long.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runtimes with their level, whether each can be had here, and how to get it."""
    if measure:
        from cellwall.apps.cli.console.built_template import built

        built(_TEMPLATE)
    rows = [each.as_json() for each in asyncio.run(_ask(measure=measure))]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from cellwall.apps.cli.console.table import show

    names = ("runtime", "level", "available", *(["start"] if measure else []))
    show((*names, "missing", "to get it"), (_cells(row, measure=measure) for row in rows))


async def _ask(*, measure: bool) -> list[Offer]:
    from cellwall.apps.engines import open_engine
    from cellwall.engine.policy.offers import measured, offers

    async with open_engine() as engine:
        found = await offers(engine)
        if not measure:
            return found
        return [await measured(engine, each, _TEMPLATE, _STARTS) for each in found]


def _cells(row: dict[str, Any], *, measure: bool) -> tuple[str, ...]:
    available = "yes" if row["available"] else "no" if row["allowed"] else "not allowed"
    start = "" if row["start"] is None else f"{row['start']['p50_ms']:.0f} ms"
    return (
        row["name"],
        row["level"],
        available,
        *([start] if measure else []),
        "; ".join(row["missing"]) if row["allowed"] else "",
        "; ".join(row["remedies"]),
    )
