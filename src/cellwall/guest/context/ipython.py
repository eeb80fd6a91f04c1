"""IPython's shell inside a context: magics, `!`, `?`, formatters; quiet, plain and threadless.

Built by `preload.py` in the fork-server when the template has IPython, connected by `cell.py` in a
context. Valid Python is not run by it (`cell.py` does that), and no program ever sees it.

Nothing here may open SQLite, start a thread or write a profile folder: the fork-server forks with
whatever exists then, and its root is read-only.
"""

from __future__ import annotations

import atexit
import builtins
import fnmatch
import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.guest.context import sql
from cellwall.guest.context.program import Ending, exit_code_of
from cellwall.guest.display import source_registry, tracebacks
from cellwall.guest.display.display import bounded_repr, flush_stdout
from cellwall.guest.display.figures import facts_of, png_of, table_of
from cellwall.guest.drivers.available import has_duckdb

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cellwall.guest.display.display import Display

_FIRST_WORD = re.compile(r"\s*([A-Za-z_]\w*)")
_PLAIN_TYPES = (int, bool, str)

_built: list[Shell] = []


def build() -> Shell | None:
    """Return the shell of this process, made now if IPython is installed; else None.

    Its terminal half (15 MiB more) stays out: the shell is embedded and has no keyboard.
    """
    if not _built:
        if importlib.util.find_spec("IPython") is None:
            return None
        _built.append(Shell())
    return _built[0]


def adopt(display: Display, report: Callable[[BaseException], None]) -> Shell | None:
    """Return the shell as `__main__`, connected to this context's display and error report."""
    built = build()
    if built is not None:
        built.connect(display, report)
    return built


class Shell:
    """IPython's InteractiveShell, and what a notebook needs to know of it."""

    def __init__(self) -> None:
        """Make IPython's singleton."""
        ip = _shell_class().instance(config=_configuration())
        # It would clear the namespace before the caller's own exit functions have run.
        atexit.unregister(ip.atexit_operations)
        # Its database is in memory: nothing to save, yet every program would close it at its exit.
        closing = getattr(ip.history_manager, "_finalizer", None)
        if closing is not None:
            closing.detach()
        ip.register_magic_function(partial(_run_pip, ip), "line", "pip")
        page = importlib.import_module("IPython.core.page")
        if has_duckdb():
            sql.add_magic(ip)
        ip.set_hook("show_in_pager", page.as_hook(page.display_page), 0)
        ip.display_formatter.formatters["image/png"].for_type_by_name(
            "matplotlib.figure", "Figure", png_of
        )
        bundles = ip.display_formatter.mimebundle_formatter
        bundles.for_type_by_name("matplotlib.figure", "Figure", facts_of)
        for module in ("pandas", "pandas.core.frame"):  # by its version
            bundles.for_type_by_name(module, "DataFrame", table_of)
        ip.db = Database()
        _close_devnull()
        self._ip = ip
        self._display: Display | None = None
        self._counts_first = ip.displayhook.prompt_count != ip.execution_count
        self._printers = ip.display_formatter.formatters["text/plain"].type_printers
        self._known_printers = {kind: self._printers.get(kind) for kind in _PLAIN_TYPES}
        self._known_transforms = self._transforms()
        self.namespace: dict[str, Any] = ip.user_ns
        self.reset()

    def reset(self) -> None:
        """Forget every cell, as if none had been run."""
        self._ip.reset(new_session=True)
        # IPython's own `exit` only sets a flag that a terminal would look at.
        leave = {"exit": sys.exit, "quit": sys.exit}
        self.namespace.update(leave)
        self._ip.user_ns_hidden.update(leave)

    @property
    def count(self) -> int:
        """Return how many cells were run."""
        return int(self._ip.execution_count) - 1

    def connect(self, display: Display, report: Callable[[BaseException], None]) -> None:
        """Send displays to `display` and every exception to `report`."""
        ip = self._ip
        self._display = ip.display_pub.sink = ip.displayhook.sink = display
        ip.report = report
        sys.modules["__main__"] = ip.user_module
        sys.displayhook = ip.displayhook
        ip_display = importlib.import_module("IPython.display").display
        vars(builtins).update(get_ipython=ip.get_ipython, display=ip_display, __IPYTHON__=True)
        # `%cd -` and `%dhist` start where the cells began, not where the shell was made.
        ip.user_ns["_dh"][:] = [Path.cwd()]
        source_registry.hide_frames_of(os.path.dirname(str(sys.modules["IPython"].__file__)))

    def set_loop_runner(self, runner: Callable[[Any], object]) -> None:
        """Let awaits in cells with magics share the loop of the other cells."""
        self._ip.loop_runner = runner

    def publish(self, bundle: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show a bundle the way display() does, so that %%capture sees it."""
        self._ip.display_pub.publish(bundle, metadata)

    def handles(self, source: str) -> bool:
        """Return whether IPython has to run the cell although it may be valid Python."""
        ip = self._ip
        callbacks = ip.events.callbacks
        if ip.ast_transformers or callbacks["pre_run_cell"] or callbacks["post_run_cell"]:
            return True
        if self._transforms() != self._known_transforms:
            return True
        word = _FIRST_WORD.match(source)
        # Automagic: `ls -l` is valid Python, too. IPython offers it for single lines only.
        if word is None or "\n" in source.strip():
            return False
        name = word.group(1)
        if name in self.namespace or hasattr(builtins, name):
            return False
        return ip.find_line_magic(name) is not None

    def run(self, source: str) -> Ending:
        """Run a cell through IPython, which reports what it raises."""
        result = self._ip.run_cell(source, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        if isinstance(error, SystemExit):
            return Ending(False, exit_code_of(error))
        return Ending(error is not None, None)

    def begin(self, source: str) -> int:
        """Note the cell as IPython would before running it; return its number."""
        ip = self._ip
        number = int(ip.execution_count)
        ip.history_manager.store_inputs(number, source, source)
        if self._counts_first:
            ip.execution_count = number + 1
        ip.events.trigger("pre_execute")
        return number

    def end(self) -> None:
        """Tell IPython's listeners that the cell ended."""
        if not self._counts_first:
            self._ip.execution_count += 1
        self._ip.events.trigger("post_execute")

    def show(self, value: object) -> None:
        """Keep a cell's value in Out and `_`, and show it with IPython's formatters."""
        self._ip.displayhook.update_user_ns(value)
        kind = type(value)
        metadata: dict[str, Any] = {}
        if kind in _PLAIN_TYPES and self._printers.get(kind) is self._known_printers[kind]:
            # Ten formatters have nothing to add to a number, and take 0.1 ms for that.
            bundle = {"text/plain": bounded_repr(value)}
        else:
            bundle, metadata = self._ip.display_formatter.format(value)
        if self._display is not None and bundle:
            self._display.publish(bundle, metadata, "result")

    def _transforms(self) -> tuple[int, ...]:
        manager = self._ip.input_transformer_manager
        return (
            len(manager.cleanup_transforms),
            len(manager.line_transforms),
            len(manager.token_transformers),
            len(self._ip.input_transformers_post),
        )


def _configuration() -> Any:  # noqa: ANN401  traitlets', imported late
    config = importlib.import_module("traitlets.config").Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.banner1 = ""
    return config


def _close_devnull() -> None:
    """Close /dev/null, which IPython before 8.12 keeps open, and which a fork-server must not."""
    streams: Any = sys.modules.get("IPython.utils.io")
    if hasattr(streams, "devnull"):
        streams.devnull.close()
        streams.devnull = io.StringIO()


class Database(dict):  # type: ignore[type-arg]  # Python 3.8 has no dict[str, Any]
    """What magics such as `%bookmark` keep: in memory, where IPython has a folder of its profile.

    It has of the class `PickleShareDB` what IPython uses.
    """

    def __init__(self, _folder: object = None) -> None:
        """Begin empty; no folder is read or made."""
        super().__init__()

    def keys(self, pattern: str = "*") -> list[str]:  # type: ignore[override]  # PickleShareDB takes one
        """Return the keys that match a pattern of the shell."""
        return [key for key in self if fnmatch.fnmatchcase(key, pattern)]

    def __delitem__(self, key: str) -> None:
        """Remove a key; one that is not there is no error."""
        self.pop(key, None)

    def uncache(self, *_keys: str) -> None:
        """Do nothing: there is no file that could have changed."""


class _NoProfile:
    """Stands in for IPython's profile, whose folder is neither read nor made."""

    @property
    def location(self) -> str:
        """The folder that it would have."""
        return os.path.expanduser("~/.ipython/profile_default")


def _shell_class() -> Any:  # noqa: ANN401, C901  fourteen small overrides of a class whose base exists only with IPython
    shells: Any = importlib.import_module("IPython.core.interactiveshell")
    if hasattr(shells, "PickleShareDB"):
        shells.PickleShareDB = Database  # IPython before 9.15 makes one with its shell
    base: Any = shells.InteractiveShell
    usage_error = importlib.import_module("IPython.core.error").UsageError

    class ContextShell(base):  # type: ignore[misc]
        """IPython's shell, without a terminal, a profile or a history file."""

        profile_dir = _NoProfile()
        display_pub_class = _publisher_class()
        displayhook_class = _displayhook_class()
        compiler_class = _compiler_class()
        report: Callable[[BaseException], None] = staticmethod(_print_only)

        def init_ipython_dir(self, _folder: object) -> None:
            """Do nothing: no profile folder is read or written."""

        def init_profile_dir(self, _folder: object) -> None:
            """Do nothing: there is no profile folder."""

        def init_virtualenv(self) -> None:
            """Do nothing: the template decides what can be imported."""

        def enable_gui(self, gui: object = None) -> None:
            """Do nothing: no toolkit has an event loop here, and figures are drawn when shown."""

        def enable_matplotlib(self, gui: object = None) -> tuple[str, str]:
            """Handle `%matplotlib anything`: figures are captured in any case."""
            importlib.import_module("matplotlib.pyplot")
            return "agg", "agg"

        def showtraceback(self, exc_tuple: Any = None, *_args: Any, **_options: Any) -> None:  # noqa: ANN401
            """Report the exception in plain text and as an event."""
            error = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
            if isinstance(error, usage_error):
                source_registry.print_to_stderr(f"UsageError: {error}\n")
            elif error is not None and not isinstance(error, SystemExit):
                self.report(error)

        def showsyntaxerror(self, *_args: object, **_options: object) -> None:
            """Report it like any other exception."""
            self.showtraceback()

        def showindentationerror(self) -> None:
            """Report it like any other exception; IPython would recommend %paste."""
            self.showtraceback()

        def ask_exit(self) -> None:
            """End the cell, because there is no terminal to leave."""
            raise SystemExit(0)

        def system(self, cmd: str) -> None:
            """Run `!command` on the streams of the cell and without a terminal."""
            line = self.var_expand(cmd, depth=1)
            self.user_ns["_exit_code"] = _run_command(line)

        def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> object:
            line = self.var_expand(cmd, depth=depth + 1)
            done = subprocess.run(  # noqa: S602  the caller's shell command, in the caller's jail
                line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            text = done.stdout.decode("utf-8", "replace")
            kinds = importlib.import_module("IPython.utils.text")
            return kinds.SList(text.splitlines()) if split else kinds.LSString(text)

    return ContextShell


def _run_pip(ip: Any, line: str) -> None:  # noqa: ANN401  IPython's shell
    """Run `%pip`; where the template has no pip, use the system's and name the template to it."""
    has_own = importlib.util.find_spec("pip") is not None
    this = sys.executable
    ip.system(f"{this} -m pip {line}" if has_own else f"pip --python {this} {line}")


def _print_only(error: BaseException) -> None:
    source_registry.print_to_stderr(tracebacks.text_of(error))


def _run_command(line: str) -> int:
    flush_stdout()
    try:
        is_ours = sys.stdout.fileno() == 1
    except Exception:  # noqa: BLE001  %%capture and callers put objects without fileno there
        is_ours = False
    if is_ours:
        return _as_ipython_counts(subprocess.call(line, shell=True))  # noqa: S602  as above
    done = subprocess.run(  # noqa: S602  as above
        line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    sys.stdout.write(done.stdout.decode("utf-8", "replace"))
    return _as_ipython_counts(done.returncode)


def _as_ipython_counts(code: int) -> int:
    # A shell says 128 + n for a signal; `_exit_code` says -n.
    return 128 - code if code > 128 else code


def _publisher_class() -> Any:  # noqa: ANN401  as in _shell_class
    base: Any = importlib.import_module("IPython.core.displaypub").DisplayPublisher

    class ContextPublisher(base):  # type: ignore[misc]
        """Publisher that turns display() into an event."""

        sink: Display | None = None

        def publish(
            self,
            data: dict[str, Any],
            metadata: dict[str, Any] | None = None,
            *_source: object,
            **_options: object,
        ) -> None:
            if self.sink is not None:
                self.sink.publish(data, metadata)

        def clear_output(self, wait: bool = False) -> None:
            """Do nothing: what was sent stays; IPython would print escape codes."""

    return ContextPublisher


def _displayhook_class() -> Any:  # noqa: ANN401  as in _shell_class
    base: Any = importlib.import_module("IPython.core.displayhook").DisplayHook

    class ContextDisplayHook(base):  # type: ignore[misc]
        """Display hook that turns a cell's value into an event, not a printed Out[n]."""

        sink: Display | None = None

        def start_displayhook(self) -> None:
            """Print no prompt."""

        def write_output_prompt(self) -> None:
            """Print no prompt."""

        def write_format_data(
            self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
        ) -> None:
            if self.sink is not None:
                self.sink.publish(format_dict, md_dict, "result")

        def log_output(self, format_dict: dict[str, Any]) -> None:
            """Do nothing: results are not kept a second time."""

        def finish_displayhook(self) -> None:
            """Print no separator."""

    return ContextDisplayHook


def _compiler_class() -> Any:  # noqa: ANN401  as in _shell_class
    base: Any = importlib.import_module("IPython.core.compilerop").CachingCompiler

    class ContextCompiler(base):  # type: ignore[misc]
        """Compiler that names cells as `cell.py` does."""

        def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
            return f"<cell {number}>"

        def cache(self, transformed_code: str, number: int = 0, raw_code: Any = None) -> str:  # noqa: ANN401  as in IPython
            """Name a cell and keep its lines, counted as Python counts them."""
            name = str(super().cache(transformed_code, number, raw_code))
            source_registry.remember(name, transformed_code)
            return name

        def format_code_name(self, name: str) -> None:
            """Return None: IPython's own tracebacks, which are not used, get no special form."""

    return ContextCompiler
