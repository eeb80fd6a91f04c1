"""`cellwall bench`: the command in front of `cellwall.apps.bench`.

Called by `main` and `make bench`. Invariant: progress goes to stderr; stdout has the result only.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console.terminal import complain


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", short_help="Measure this machine.")(bench)


def bench(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quick: Annotated[bool, typer.Option(help="Fewer samples: minutes become seconds.")] = False,
    soak: Annotated[int | None, typer.Option(help="Fresh runs in the row of runs.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Only this row; repeatable.")
    ] = None,
    isolation: Annotated[
        str, typer.Option(help="Weakest acceptable level: process, namespace, kernel or vm.")
    ] = "namespace",
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table as Markdown.")
    ] = None,
) -> None:
    """Measure this machine: every figure beside the start of a bare interpreter."""
    from cellwall.apps.bench.figures import BY_KEY
    from cellwall.apps.bench.report import COLUMNS, markdown, row
    from cellwall.apps.bench.report import as_json as result_as_json
    from cellwall.apps.bench.runner import FULL, QUICK, Bench
    from cellwall.apps.cli.console.table import show
    from cellwall.apps.cli.templates import built
    from cellwall.model.errors import UsageError

    unknown = sorted(set(only or ()) - set(BY_KEY))
    if unknown:
        raise UsageError(f"bench: no row {unknown[0]!r}", remedy=f"rows: {', '.join(BY_KEY)}")
    effort = QUICK if quick else FULL
    if soak is not None:
        effort = replace(effort, soak=soak)
    plan = Bench(
        effort, isolation, {name: built(name) for name in ("python", "data")}, frozenset(only or ())
    )
    result = asyncio.run(plan.run(complain))
    if write is not None:
        write.write_text(markdown(result), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result_as_json(result), indent=2))
        return
    show(
        COLUMNS,
        [row(figure) for figure in result.figures],
        title="quick run: smaller counts than the rows say, see detail" if quick else None,
        styles={"aim": "green", "missed": "bold red", "not measured": "yellow"},
    )
