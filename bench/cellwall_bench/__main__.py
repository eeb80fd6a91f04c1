"""`python -m cellwall_bench`: the bench as a command.

Called by `make bench`. Invariant: progress goes to stderr; stdout has the result only.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.console import exit_status
from cellwall.apps.cli.console.built_template import built
from cellwall.apps.cli.console.table import show
from cellwall.apps.cli.console.terminal import complain
from cellwall.model.errors import CellwallError, UsageError
from cellwall_bench.figures import BY_KEY
from cellwall_bench.report import COLUMNS, markdown, row
from cellwall_bench.report import as_json as result_as_json
from cellwall_bench.runner import FULL, QUICK, Bench


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


def main() -> None:
    """Run the bench and leave with the status that the `cellwall` command would have."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(bench)
    try:
        app()
    except CellwallError as error:
        complain(str(error))
        sys.exit(exit_status.OUR_FAILURE)
    except KeyboardInterrupt:
        sys.exit(exit_status.INTERRUPTED)


if __name__ == "__main__":
    main()
