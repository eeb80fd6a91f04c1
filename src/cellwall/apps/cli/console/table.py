"""A table on stdout: aligned columns, wrapped on a terminal, never markup.

Not for a sandbox's output. Called by the commands that list things. Invariant: cells are data;
nothing in them is read as rich markup or as an escape sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.cli.console.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_GRADES = {"PASS": "green", "CAUTION": "yellow", "FAIL": "bold red"}
_PIPE_WIDTH = 200


def show(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    styles: Mapping[str, str] = _GRADES,
) -> None:
    """Print `rows` under `columns`; a cell whose whole text is in `styles` gets that colour."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    table = Table(box=box.SIMPLE, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = [visible(cell) for cell in row]
        table.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in cells))
    console.print(table)
