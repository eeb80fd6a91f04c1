"""The context process: wait for code, run it, report how it ended; repeatedly for a notebook.

Forked by init (`contexts.py`), warm from the fork-server. It is not a security boundary and holds
no secret: caller code shares this process, and init believes nothing it reports without evidence.

While caller code runs, only descriptors 0, 1 and 2 are open: the link is closed before the first
line of caller code and opened only for a moment to report.
"""

from __future__ import annotations

# The C module under `signal`: the wrapper turns numbers into enum members, a page each.
import _signal  # type: ignore[import-not-found]
import io
import os
import sys
from _thread import get_native_id

from cellwall.guest.channel import enclosed
from cellwall.guest.channel.handshake import IDLE
from cellwall.guest.channel.init_link import EXIT_UNSERVED, LinkClosed
from cellwall.guest.channel.outbox import Outbox
from cellwall.guest.context import program as one_shot
from cellwall.guest.context import recursion_limit
from cellwall.guest.display import source_registry
from cellwall.guest.display.charts import Charts
from cellwall.guest.display.display import DEFAULT_DISPLAY_BYTES, Display
from cellwall.guest.display.figures import Figures
from cellwall.guest.process import exit_watch, user_site
from cellwall.guest.process.import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TextIO

    from cellwall.guest.channel.init_link import Link
    from cellwall.guest.context.cell import Notebook
    from cellwall.guest.context.program import Ending
    from cellwall.guest.context.sql import SqlCells


_SIGINT: int = _signal.SIGINT
_MOST_LATE_INTERRUPTS = 100
_OURS = ("python", "sql")
"""Languages that run in this process; others have an interpreter process of their own."""


def main(link: Link, config: dict[str, Any]) -> NoReturn:
    """Serve one context until its program ends, init hangs up, or it is killed."""
    if config.get("language", "python") not in _OURS:
        from cellwall.guest.context.foreign import context as foreign

        foreign.main(link, config)
    code = 1
    try:
        if not _prepared:
            _prepared.append(_Context())
        _prepared[0].begin(link, config)
        _prepared[0].serve()
    except ConnectionError:
        code = EXIT_UNSERVED
    except BaseException as error:  # noqa: BLE001  the last word of a process
        from cellwall.guest.display import tracebacks

        source_registry.print_to_stderr(f"context: cannot go on\n{tracebacks.text_of(error)}")
    finally:
        os._exit(code)


def prepare() -> None:
    """Build a context once, in a fork-server; its forks only get a link and fresh seeds.

    A fork does not write to pages that were filled here, and every page that a fork writes to is
    copied.
    """
    if not _prepared:
        # A stream remembers what it finds out about its descriptor: these must be like a context's.
        with StandardStreams():
            _prepared.append(_Context())


def forget() -> None:
    """Undo what a rehearsal in this process left in the objects that `prepare` has built."""
    for each in _prepared:
        each.forget()


class StandardStreams:
    """Context manager: 0, 1 and 2 are like a context's, /dev/null and a pipe that is not read."""

    def __enter__(self) -> None:
        """Put these descriptors in place."""
        self._kept = [os.dup(number) for number in range(3)]
        nothing = os.open(os.devnull, os.O_RDONLY)
        self._pipe = os.pipe()
        for number, descriptor in enumerate((nothing, self._pipe[1], self._pipe[1])):
            os.dup2(descriptor, number)
        os.close(nothing)

    def __exit__(self, *_: object) -> None:
        """Restore the former descriptors."""
        for number, descriptor in enumerate(self._kept):
            os.dup2(descriptor, number)
        for descriptor in (*self._kept, *self._pipe):
            os.close(descriptor)


class _Context:
    """This process as a context: its streams, figures and thread tracebacks, for its forks."""

    def __init__(self) -> None:
        self._outbox = Outbox()
        self._display = Display(self._outbox)
        self._figures = Figures(self._display.publish)
        self._language = "python"
        self._notebook: Notebook | SqlCells | None = None
        self._handler: Any = _signal.default_int_handler
        """The caller's SIGINT handler, while `_note_interrupt` stands in for it."""
        self._is_deaf = False
        self._is_interrupted = False
        self._is_end_foreseen = False
        self._is_alone = False
        sys.stdin = sys.__stdin__ = _input()  # type: ignore[misc, assignment]
        sys.stdout = sys.__stdout__ = _output(1, "<stdout>")  # type: ignore[misc, assignment]
        sys.stderr = sys.__stderr__ = _output(2, "<stderr>")  # type: ignore[misc, assignment]
        self._figures.capture()
        self._charts = Charts(self._display)
        self._charts.capture()
        recursion_limit.prepare()
        after_import("threading", _report_threads)
        user_site.add_when_missed()

    def begin(self, link: Link, config: dict[str, Any]) -> None:
        """Make this process the context that `config` describes."""
        self._link = link
        self._is_end_foreseen = bool(config.get("is_end_foreseen"))
        self._is_alone = config.get("purpose") == "single_program"
        self._language = str(config.get("language", "python"))
        self._charts.capture_saved()
        self._outbox.open(link)
        self._display.limit_bytes = int(config.get("display_bytes") or DEFAULT_DISPLAY_BYTES)
        if "random" in sys.modules:  # else no generator existed before the fork
            _reseed()
        self._note_thread()

    def _note_thread(self) -> None:
        """Correct the id of the main thread after a fork without hooks."""
        threading: Any = sys.modules.get("threading")
        if threading is not None:
            # The fork ran no hooks (`processes.fork_quietly`), and this is the one thing they mend
            # that a program with one thread can see.
            threading._main_thread._native_id = get_native_id()

    def forget(self) -> None:
        """Drop the link, so that a fork has nothing to release."""
        self._link = None  # type: ignore[assignment]  # until `begin`
        self._outbox.forget()

    def serve(self) -> NoReturn:
        """Report idle, take one execution, run it; a program does not return."""
        while True:
            header, source, stdin_fd = self._wait_for_work()
            is_streamed = stdin_fd >= 0
            if is_streamed:
                _take_stdin(stdin_fd)
            self._display.begin()
            user_site.add()
            _install_tools(header.get("tools"), self._link)
            if header.get("mode") != "cell":
                is_alone = self._is_alone and not header.get("files")
                program = one_shot.Program(header, source, is_alone=is_alone)
                is_held = bool(header.get("held"))
                before = self._wait_to_go_on if is_held else self._raise_interrupt
                after = self._announce_end
                if self._language == "sql":
                    from cellwall.guest.context import sql

                    sql.run_program(program, self._outbox, self._display, before)
                one_shot.run(program, self._outbox, self._display, self._figures, before, after)
            self._run_cell(header, source.decode("utf-8", "replace"))
            if is_streamed:
                _drop_stdin()

    def _wait_for_work(self) -> tuple[dict[str, Any], bytes, int]:
        """Return one `execute`, its source and its input descriptor (-1: none); write its files.

        An interrupt that arrives meanwhile is kept for the code that it was meant for. Init passes
        interrupts on only between sending an execution and reading its end, and after an interrupt
        it asks for `idle` a second time: any signal on its way has arrived by then, and was meant
        for the execution that is over.
        """
        self._deafen()
        self._link.say(IDLE)
        try:
            header, source, stdin_fd = self._receive()
            while header.get("op") != "execute":
                if header.get("op") == "idle":
                    self._forget_interrupt()
                    self._link.say(IDLE)
                else:
                    self._copy(header)
                header, source, stdin_fd = self._receive()
            source = enclosed.place_files(header, source)
        except enclosed.NotPlaced as error:
            self._link.say(error.word)
            raise LinkClosed(str(error)) from None
        except BaseException:
            self._link.close()
            raise
        if not header.get("held"):
            self._link.close()
        return header, source, stdin_fd

    def _copy(self, header: dict[str, Any]) -> None:
        """Be copied, or become a copy; a copy then says that it waits."""
        from cellwall.guest.context import copies

        if header["op"] == "reseed":  # the whole sandbox is a copy
            copies.reseed_all()
            return
        background = getattr(self._notebook, "background", None)
        loop = None if background is None else background.open_loop
        if copies.serve(self._link, header, loop):
            self._outbox.open(self._link)
            self._note_thread()
            self._link.say(IDLE)

    def _receive(self) -> tuple[dict[str, Any], bytes, int]:
        """Return what init sends; tasks that cells have left run until it comes."""
        background = getattr(self._notebook, "background", None)
        if background is not None:
            background.run_until_readable(self._link.fileno())
        return self._link.receive_work()

    def _wait_to_go_on(self) -> None:
        """Wait until the host starts a held program; then no descriptor of the link is open."""
        self._link.wait_to_go_on()
        self._raise_interrupt()

    def _deafen(self) -> None:
        """Only note interrupts from now on."""
        if not self._is_deaf:
            # This raises what the caller's handler raises, if an interrupt came before it took
            # effect.
            handler = _signal.signal(_SIGINT, self._note_interrupt)
            self._handler, self._is_deaf = handler, True

    def _note_interrupt(self, _number: int, _frame: object) -> None:
        self._is_interrupted = True

    def _forget_interrupt(self) -> None:
        self._is_interrupted = False

    def _raise_interrupt(self) -> None:
        """Give SIGINT back to the caller, together with an interrupt that came early."""
        handler = _signal.default_int_handler if self._handler is None else self._handler
        self._is_deaf = False
        _signal.signal(_SIGINT, handler)
        if self._is_interrupted:
            self._is_interrupted = False
            _signal.raise_signal(_SIGINT)

    def _announce_end(self) -> None:
        if self._is_end_foreseen:
            exit_watch.announce()

    def _run_cell(self, header: dict[str, Any], source: str) -> None:
        if self._notebook is None:
            self._notebook = self._made_notebook()
        _reopen_streams()
        ending = self._run_deafly(self._notebook, source, bool(header.get("display", True)))
        if not self._outbox.is_ours:
            # A child that caller code forked, at the end of its cell.
            os._exit(ending.exit_code or int(ending.is_raised))
        end = {"ev": "end", "raised": ending.is_raised, "status": ending.exit_code}
        if not self._outbox.post({**end, "display_cut": self._display.cut_bytes}, keep_open=True):
            raise OSError("end of a cell: cannot reach init; close files in the code that ran")

    def _made_notebook(self) -> Notebook | SqlCells:
        if self._language == "sql":
            from cellwall.guest.context.sql import SqlCells

            return SqlCells(self._outbox, self._display)
        from cellwall.guest.context.cell import Notebook

        return Notebook(self._outbox, self._display, self._figures)

    def _run_deafly(self, notebook: Notebook | SqlCells, source: str, is_displayed: bool) -> Ending:
        """Run a cell and leave SIGINT to `_note_interrupt`; an interrupt may come in between.

        `notebook.run` raises nothing that the cell raised, so an exception here comes from a signal
        handler after the cell's code had ended.
        """
        ending: Ending | None = None
        late: BaseException | None = None
        for _ in range(_MOST_LATE_INTERRUPTS):
            try:
                if ending is None and late is None:
                    ending = notebook.run(source, is_displayed, self._raise_interrupt)
                self._deafen()
                break
            except BaseException as error:  # noqa: BLE001  a handler raises what it likes
                late = error
        if ending is None:
            assert late is not None  # noqa: S101  for the type checker only
            notebook.report(late)
            ending = one_shot.Ending(True, None)
        return ending


_prepared: list[_Context] = []


def _reseed() -> None:
    # Not an import statement: even for a loaded module it touches a dozen pages.
    reseed: Any = sys.modules.get("cellwall.guest.process.reseed")
    if reseed is None:
        from cellwall.guest.process import reseed
    reseed.apply()


def _report_threads(threading: Any) -> None:  # noqa: ANN401  the module
    """Make tracebacks of threads show the caller's lines."""
    from cellwall.guest.display import tracebacks

    threading.excepthook = tracebacks.report_thread


def _install_tools(manifest: dict[str, Any] | None, link: Link) -> None:
    if manifest is not None or "tools" in sys.modules:
        from cellwall.guest.context import tools

        tools.install(manifest, link)


def _input() -> TextIO:
    raw = io.FileIO(0, "r", closefd=False)
    raw.name = "<stdin>"
    # As CPython's own: only "\n" ends a line, and "\r" stays what it is.
    return io.TextIOWrapper(io.BufferedReader(raw), "utf-8", "surrogateescape", "\n")


def _output(descriptor: int, name: str) -> TextIO:
    raw = io.FileIO(descriptor, "w", closefd=False)
    raw.name = name
    buffered = io.BufferedWriter(raw)
    # Line by line, as on a terminal: a user may be watching while the code runs.
    return io.TextIOWrapper(buffered, "utf-8", "backslashreplace", line_buffering=True)


def _reopen_streams() -> None:
    """Reopen the streams that a cell has closed, for the next cell."""
    if getattr(sys.stdin, "closed", True):
        sys.stdin = sys.__stdin__ = _input()  # type: ignore[misc, assignment]
    if getattr(sys.stdout, "closed", True):
        sys.stdout = sys.__stdout__ = _output(1, "<stdout>")  # type: ignore[misc, assignment]
    if getattr(sys.stderr, "closed", True):
        sys.stderr = sys.__stderr__ = _output(2, "<stderr>")  # type: ignore[misc, assignment]


def _take_stdin(descriptor: int) -> None:
    if descriptor:  # else a cell has closed its input
        os.dup2(descriptor, 0)
        os.close(descriptor)
    # A new object: the old one may hold bytes meant for the cell before.
    sys.stdin = sys.__stdin__ = _input()  # type: ignore[misc, assignment]


def _drop_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = sys.__stdin__ = _input()  # type: ignore[misc, assignment]
