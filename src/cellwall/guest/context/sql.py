"""SQL cells: DuckDB in a context's own process, over files of the sandbox and data frames.

Used by `context/main.py` for a context of language SQL, and by `ipython.py` for `%%sql` in a Python
context, where data frames of the notebook are tables by their names. DuckDB comes with the
template; it is imported with the first statement, never before the fork, because it keeps threads.

A statement's result is shown as text, HTML and JSON, each bounded; SQL's own COPY can write the
whole result to a file.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import json
import math
import os
from typing import TYPE_CHECKING

from cellwall.guest.context.program import EXIT_INTERRUPTED, Ending, report_error
from cellwall.guest.display import source_registry
from cellwall.guest.display.display import flush_stdout
from cellwall.guest.display.json_value import Encoded, encode_value, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from cellwall.guest.channel.outbox import Outbox
    from cellwall.guest.context.program import Program
    from cellwall.guest.display.display import Display

MOST_SHOWN_ROWS = 1000
"""Maximum number of rows of a result in JSON; HTML and text show fewer."""
_MOST_RESULT_ROWS = 100_000
"""Maximum number of rows of a program's result, which has a bound in bytes, too."""
_MOST_HTML_ROWS = 200
_MOST_TEXT_ROWS = 40
_MOST_CELL_CHARACTERS = 2000


class Table:
    """The result of a statement: column names and the first rows."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]], is_whole: bool) -> None:
        """`is_whole` is False when there were more rows."""
        self.columns = columns
        self.rows = rows
        self.is_whole = is_whole

    def _repr_mimebundle_(self, **_options: object) -> dict[str, Any]:
        return self.bundle()

    def bundle(self) -> dict[str, Any]:
        """Return the forms that a notebook shows."""
        return {
            "text/plain": self._text(),
            "text/html": self._html(),
            "application/json": {
                "columns": self.columns,
                "rows": [[_plain(value) for value in row] for row in self.rows[:MOST_SHOWN_ROWS]],
                "truncated": not self.is_whole or len(self.rows) > MOST_SHOWN_ROWS,
            },
        }

    def records(self) -> list[dict[str, Any]]:
        """Return rows by column name, for a program's result; a repeated name is numbered."""
        names = _distinct(self.columns)
        return [dict(zip(names, map(_plain, row))) for row in self.rows]

    def _text(self) -> str:
        shown = [[_short(value) for value in row] for row in self.rows[:_MOST_TEXT_ROWS]]
        widths = [
            max(len(name), *(len(row[i]) for row in shown)) if shown else len(name)
            for i, name in enumerate(self.columns)
        ]
        lines = [self.columns, ["-" * width for width in widths], *shown]
        text = "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
            for line in lines
        )
        return text + self._rest(_MOST_TEXT_ROWS)

    def _html(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_short(value))}</td>" for value in row) + "</tr>"
            for row in self.rows[:_MOST_HTML_ROWS]
        )
        note = html.escape(self._rest(_MOST_HTML_ROWS).strip())
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return table + (f"<p>{note}</p>" if note else "")

    def _rest(self, shown: int) -> str:
        if not self.is_whole:
            return f"\n[more than {len(self.rows)} rows]"
        return f"\n[{len(self.rows)} rows]" if len(self.rows) > shown else ""


class Database:
    """One DuckDB connection, made with the first statement."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._duckdb: Any = None

    def run(
        self,
        source: str,
        arguments: Mapping[str, Any] | None = None,
        frames: Mapping[str, Any] | None = None,
        *,
        most_rows: int = MOST_SHOWN_ROWS,
        on_earlier: Callable[[Table], None] | None = None,
    ) -> Table | None:
        """Run all statements; return up to `most_rows` rows of the last one, if it returned rows.

        `arguments` are parameters by name (`$name`). `frames` may hold data frames under names that
        statements use. `on_earlier` gets the tables of statements before the last, each before the
        next one runs. Raises what DuckDB raises.
        """
        connection = self._open()
        table = None
        for statement in connection.extract_statements(source):
            if table is not None and on_earlier is not None:
                on_earlier(table)
            names: Any = getattr(statement, "named_parameters", ())
            given = {name: value for name, value in (arguments or {}).items() if name in names}
            self._lend(connection, statement.query, frames or {})
            cursor = connection.execute(statement, given or None)
            table = self._table(cursor, statement, most_rows)
        return table

    def _open(self) -> Any:  # noqa: ANN401  DuckDB's, imported late
        if self._connection is None:
            self._duckdb = importlib.import_module("duckdb")
            threads = len(os.sched_getaffinity(0))
            # Extensions would come from the network, and a sandbox has none.
            settings = {"autoinstall_known_extensions": False, "threads": threads}
            self._connection = self._duckdb.connect(":memory:", config=settings)
        return self._connection

    def _lend(self, connection: Any, query: str, frames: Mapping[str, Any]) -> None:  # noqa: ANN401
        if not frames:
            return
        try:
            names = connection.get_table_names(query)
        except self._duckdb.Error:
            return  # the statement's own error says what is wrong with it
        for name in names:
            if name in frames and hasattr(frames[name], "columns"):
                connection.register(name, frames[name])

    def _table(
        self,
        cursor: Any,  # noqa: ANN401  DuckDB's, imported late
        statement: Any,  # noqa: ANN401  the same
        most: int,
    ) -> Table | None:
        if not cursor.description:
            return None
        rows = cursor.fetchmany(most + 1)
        columns = [str(column[0]) for column in cursor.description]
        kind = getattr(getattr(statement, "type", None), "name", "SELECT")
        if kind != "SELECT" and columns in (["Count"], ["Success"]):
            return None  # the row count of an INSERT, which no SQL shell shows
        return Table(columns, rows[:most], len(rows) <= most)


class SqlCells:
    """A notebook of SQL, with the interface of `cell.Notebook`."""

    def __init__(self, outbox: Outbox, display: Display) -> None:
        self._outbox = outbox
        self._display = display
        self._database = Database()

    def run(self, source: str, is_displayed: bool, before: Callable[[], None]) -> Ending:
        """Run one cell, `before` first; report whatever it raises, and keep the state."""
        try:
            before()
            table = self._database.run(source)
            if table is not None and is_displayed:
                self._display.publish(table.bundle(), None, "result")
        except BaseException as error:  # noqa: BLE001  everything a cell raises is its result
            self.report(error)
            return Ending(True, None)
        return Ending(False, None)

    def report(self, error: BaseException) -> None:
        """Print the error and send it as an event, without a traceback of this module's lines."""
        if str(error) == "Query interrupted":
            error = KeyboardInterrupt()  # DuckDB has its own message for it
        text = f"{type(error).__name__}: {error}\n"
        flush_stdout()
        source_registry.print_to_stderr(text)
        report_error(error, text, self._outbox)


def add_magic(ip: Any) -> None:  # noqa: ANN401  IPython's shell
    """Give a notebook `%sql` and `%%sql NAME`; its data frames are tables by their names."""
    database = Database()

    def magic(line: str, cell: str | None = None) -> Table | None:
        table = database.run(line if cell is None else cell, frames=ip.user_ns)
        name = line.strip()
        if cell is None or not name:
            return table
        ip.user_ns[name] = table
        return None

    ip.register_magic_function(magic, "line_cell", "sql")


def run_program(
    program: Program, outbox: Outbox, display: Display, before: Callable[[], None]
) -> NoReturn:
    """Run SQL as a program; `arguments` are its parameters, the last table's rows its result.

    Tables of statements before the last are displayed, as every SQL shell prints them.
    """
    ending = Ending(True, 1)
    try:
        before()
        source = program.source.decode("utf-8", "replace")

        def show(table: Table) -> None:
            if program.is_displayed:
                display.publish(table.bundle(), None, "display")

        table = Database().run(
            source, program.arguments, most_rows=_MOST_RESULT_ROWS, on_earlier=show
        )
        if table is not None:
            if program.is_displayed:
                display.publish(table.bundle(), None, "result")
            outbox.post(*_result_of(table))
        ending = Ending(False, 0)
    except BaseException as error:  # noqa: BLE001  everything it raises is its result
        SqlCells(outbox, display).report(error)
        is_interrupted = isinstance(error, KeyboardInterrupt)
        ending = Ending(True, EXIT_INTERRUPTED if is_interrupted else 1)
    finally:
        if ending.is_raised or display.cut_bytes:
            end = {"ev": "end", "raised": ending.is_raised, "exit_code": ending.exit_code}
            outbox.post({**end, "display_cut": display.cut_bytes})
        os._exit(ending.exit_code or 0)


def _result_of(table: Table) -> Encoded:
    """Return all rows or a refusal: a part would be taken for the whole."""
    if table.is_whole:
        return encode_value(table.records())
    return refused(f"table (more than {_MOST_RESULT_ROWS} rows; COPY writes it to a file)")


def _distinct(columns: list[str]) -> list[str]:
    """Number repeated names: the second `id` is `id_1`, as in a data frame of DuckDB's."""
    names: list[str] = []
    taken = set(columns)
    for name in columns:
        number, own = 0, name
        while own in names or (number and own in taken):
            number += 1
            own = f"{name}_{number}"
        names.append(own)
    return names


def _short(value: object) -> str:
    text = "NULL" if value is None else str(value)
    if len(text) > _MOST_CELL_CHARACTERS:
        return f"{text[:_MOST_CELL_CHARACTERS]}..."
    return text


def _plain(value: object) -> object:
    """Return a value as JSON has it; a value without a JSON form becomes its text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return str(value)
