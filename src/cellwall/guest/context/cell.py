"""Notebook cells: code run one piece after another in one namespace that stays.

Called by `context/main.py` for every `execute` in cell mode. It is not the one-shot program
(`program.py`), and IPython, where it is installed, handles magics, `!` and `?` (`ipython.py`).

Valid Python never goes through IPython's run_cell, which costs ten times what a small cell does. So
everything that IPython would have kept (In, Out, `_`, the count, its events) is kept here.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from cellwall.guest.context import ipython, own_modules
from cellwall.guest.context.event_loop import Background
from cellwall.guest.context.program import FUTURE_FLAGS, Ending, exit_code_of, report_error
from cellwall.guest.display import source_registry, tracebacks
from cellwall.guest.display.display import flush_stdout

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, Protocol

    from cellwall.guest.channel.outbox import Outbox
    from cellwall.guest.display.display import Display
    from cellwall.guest.display.figures import Figures

    class Memory(Protocol):
        """What a notebook needs of the object that remembers its cells.

        `PlainMemory` and `ipython.Shell` implement it.
        """

        namespace: dict[str, Any]

        @property
        def count(self) -> int:
            """Return how many cells were run."""

        def handles(self, source: str) -> bool:
            """Return whether `run` has to run the cell, valid Python or not."""

        def run(self, source: str) -> Ending | None:
            """Run a cell that is not Python; return None if that means nothing here."""

        def begin(self, source: str) -> int:
            """Note the cell and return its number."""

        def end(self) -> None:
            """Note that the cell is over."""

        def show(self, value: object) -> None:
            """Keep and show a cell's value."""


_IS_COROUTINE = 0x80
"""The value of inspect.CO_COROUTINE, without importing inspect."""


class PlainMemory:
    """What a cell finds of the cells before it, in a template without IPython."""

    def __init__(self, display: Display) -> None:
        self._display = display
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.count = 0
        self._inputs: list[str] = [""]
        self._outputs: dict[int, object] = {}
        self.namespace.update(__builtins__=builtins, In=self._inputs, Out=self._outputs)
        vars(builtins)["display"] = self._display_all

    def handles(self, source: str) -> bool:
        """Return False: all cells are Python here."""
        return False

    def run(self, source: str) -> Ending | None:
        """Return None, so that the ordinary path reports that the cell is not Python."""
        return None

    def begin(self, source: str) -> int:
        """Note the cell and return its number."""
        self.count += 1
        self._inputs.append(source)
        return self.count

    def end(self) -> None:
        """Do nothing: no listener exists."""

    def show(self, value: object) -> None:
        """Keep a cell's value in Out and `_`, and show it."""
        names = self.namespace
        names["___"], names["__"], names["_"] = names.get("__"), names.get("_"), value
        self._outputs[self.count] = names[f"_{self.count}"] = value
        self._display.show(value, "result")

    def _display_all(self, *things: object, **_options: object) -> None:
        for thing in things:
            self._display.show(thing)


class Notebook:
    """One interpreter that outlives its cells."""

    def __init__(self, outbox: Outbox, display: Display, figures: Figures) -> None:
        """Take over `__main__`, `display` and the display of figures in this process."""
        self._outbox = outbox
        self._memory: Memory = ipython.adopt(display, self.report) or PlainMemory(display)
        self._namespace = self._memory.namespace
        self._figures = figures
        figures.publish = getattr(self._memory, "publish", display.publish)
        self._future_flags = 0
        self.background = Background()
        set_loop_runner = getattr(self._memory, "set_loop_runner", None)
        if set_loop_runner is not None:
            set_loop_runner(self.background.wait_for)
        if "" not in sys.path:
            sys.path.insert(0, "")

    def run(self, source: str, is_displayed: bool, before: Callable[[], None]) -> Ending:
        """Run one cell, `before` first; report whatever it raises, and keep the state."""
        try:
            before()
            if "import" in source:
                own_modules.make_room(os.getcwd(), self._namespace)
            self.background.begin()
            ending = self._run(source, is_displayed)
            self.background.turn()
            return ending
        except SystemExit as stop:
            return Ending(False, exit_code_of(stop))
        except BaseException as error:  # noqa: BLE001  everything a cell raises is its result
            self.report(error)
            return Ending(True, None)
        finally:
            self.background.end()
            self._finish()

    def report(self, error: BaseException) -> None:
        """Print a traceback and send it as an event."""
        text = tracebacks.text_of(error)
        flush_stdout()
        source_registry.print_to_stderr(text)
        report_error(error, text, self._outbox)

    def _run(self, source: str, is_displayed: bool) -> Ending:
        if self._memory.handles(source):
            ending = self._memory.run(source)
            if ending is not None:
                return ending
        name = f"<cell {self._memory.count + 1}>"
        try:
            body, tail = self._compile(source, name, is_displayed)
        except (SyntaxError, ValueError) as error:
            refusal = error.with_traceback(None)
        else:
            return self._run_compiled(source, name, body, tail)
        # Outside of the handler, or IPython's own exception would carry this one as its context.
        ending = self._memory.run(source)
        if ending is None:
            self._memory.begin(source)
            source_registry.remember(name, source)
            raise refusal
        return ending

    def _run_compiled(
        self, source: str, name: str, body: CodeType | None, tail: CodeType | None
    ) -> Ending:
        source_registry.remember(name, source)
        self._memory.begin(source)
        try:
            value = self._execute(body, tail)
            if value is not None:
                self._memory.show(value)
        finally:
            self._memory.end()
        return Ending(False, None)

    def _compile(
        self, source: str, name: str, is_displayed: bool
    ) -> tuple[CodeType | None, CodeType | None]:
        """Return the cell as statements and, if it is to be shown, a last expression."""
        try:
            return self._split(source, name, is_displayed)
        except RecursionError:
            from cellwall.guest.context import deep_sources

            flags = self._future_flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            return deep_sources.compiled(
                lambda: self._split(source, name, is_displayed),
                lambda: compile(source, name, "exec", flags, True),
            )

    def _split(
        self, source: str, name: str, is_displayed: bool
    ) -> tuple[CodeType | None, CodeType | None]:
        flags = self._future_flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        # dont_inherit: the __future__ imports of this module are not the caller's.
        tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, True)
        last = tree.body[-1] if tree.body else None
        is_shown = is_displayed and isinstance(last, ast.Expr) and not _is_silenced(source, last)
        if is_shown:
            del tree.body[-1]
        body = compile(tree, name, "exec", flags, True) if tree.body else None
        if body is not None:
            self._future_flags |= body.co_flags & FUTURE_FLAGS
            flags |= self._future_flags
        if not is_shown:
            return body, None
        assert isinstance(last, ast.Expr)  # noqa: S101  for the type checker only
        return body, compile(ast.Expression(last.value), name, "eval", flags, True)

    def _execute(self, body: CodeType | None, tail: CodeType | None) -> object:
        """Run the statements, then the expression; return the value of the expression."""
        parts = [code for code in (body, tail) if code is not None]
        value: object = None
        if any(code.co_flags & _IS_COROUTINE for code in parts):
            value = self.background.wait_for(self._execute_awaiting(parts))
        else:
            for code in parts:
                value = eval(code, self._namespace)  # noqa: S307  the caller's code is to be run
        return None if tail is None else value

    async def _execute_awaiting(self, parts: list[CodeType]) -> object:
        # All parts run inside the loop, so that code before the first await can make tasks.
        value: Any = None
        for code in parts:
            value = eval(code, self._namespace)  # noqa: S307  likewise
            if code.co_flags & _IS_COROUTINE:
                value = await value
        return value

    def _finish(self) -> None:
        try:
            self._figures.flush()
        except BaseException as error:  # noqa: BLE001  drawing runs caller code
            self.report(error)
        flush_stdout()


def _is_silenced(source: str, last: ast.stmt) -> bool:
    """Return whether a semicolon follows the last expression."""
    if ";" not in source:
        return False
    lines = source_registry.lines_of(source)
    line, offset = getattr(last, "end_lineno", None), getattr(last, "end_col_offset", None)
    if line is None or offset is None or line > len(lines):
        return False
    rest: bytes = lines[line - 1].encode()[offset:]
    return rest.lstrip().startswith(b";")
