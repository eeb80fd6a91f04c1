"""One program in a context of its own: run it as `python file.py` would, report, and exit.

Called by `context/main.py`, once in the life of a process. It is not a notebook cell (`cell.py`)
and it knows nothing of IPython.

Nothing is imported between the first byte of the program and its exit, because every execution pays
for that time. Whatever fails on the way out, the exit code is still the program's.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import gc
import io
import os
import sys

from cellwall.guest.context import own_modules
from cellwall.guest.display import source_registry
from cellwall.guest.display.display import bundle_of
from cellwall.guest.process.import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

    from cellwall.guest.channel.outbox import Outbox
    from cellwall.guest.display.display import Display
    from cellwall.guest.display.figures import Figures

_EXIT_FLUSH_FAILED = 120
"""Exit code of CPython when stdout cannot be flushed at the end."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags with which a program's file is created; a rehearsal replaces them to write nothing."""

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

EXIT_INTERRUPTED = 130
"""Exit code 128 + SIGINT, as a shell reports a program that ended by an interrupt."""


class Ending:
    """How caller code ended."""

    __slots__ = ("exit_code", "is_raised")

    def __init__(self, is_raised: bool, exit_code: int | None) -> None:
        """`exit_code` is None for a cell that did not ask for one."""
        self.is_raised = is_raised
        self.exit_code = exit_code


class Program:
    """The fields of an `execute` request that concern a program."""

    def __init__(self, header: dict[str, Any], source: bytes, *, is_alone: bool = False) -> None:
        """Take the fields from `header`; `is_alone`: the program came with no files.

        Its file is in the working directory. The program is called by its whole path, as `python3
        main.py` calls its own, so paths that it derives from that stay valid wherever it goes.
        """
        self.source = source
        self.is_alone = is_alone
        self.folder = os.getcwd()
        name = str(header.get("filename") or "main.py")
        self.filename = f"{self.folder}/{name}"
        if "/" in name:
            self.folder = os.path.dirname(self.filename)
        self.argv = [self.filename, *map(str, header.get("argv") or ())]
        self.arguments: dict[str, Any] | None = header.get("arguments")
        self.is_displayed = bool(header.get("display"))


def run(
    program: Program,
    outbox: Outbox,
    display: Display,
    figures: Figures,
    before: Callable[[], None],
    after: Callable[[], None],
) -> NoReturn:
    """Run the program, `before` first and `after` last, and end this process with its code."""
    ending = Ending(True, 1)
    try:
        module = prepare_main(program)
        ending = execute(program, module, outbox, display, before)
        code = _leave(ending, module, figures)
        ending.exit_code = code
        if ending.is_raised or display.cut_bytes:  # else the exit code says it all
            end = {"ev": "end", "raised": ending.is_raised, "exit_code": code}
            outbox.post({**end, "display_cut": display.cut_bytes})
        if outbox.is_ours:
            after()
    finally:
        # Even an interrupt or a lack of memory in this module must not start a traceback here.
        os._exit(1 if ending.exit_code is None else ending.exit_code)


def prepare_main(program: Program) -> ModuleType:
    """Make a fresh `__main__` with everything that a script finds when it starts."""
    module = type(sys)("__main__")
    module.__file__ = program.filename
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    namespace["__cached__"] = None
    if program.arguments is not None:
        namespace["arguments"] = program.arguments
    sys.modules["__main__"] = module
    sys.argv[:] = program.argv
    if not program.is_alone:
        own_modules.make_room(program.folder)
    sys.path.insert(0, program.folder)
    sys.excepthook = sys.__excepthook__
    sys.displayhook = sys.__displayhook__
    vars(builtins).pop("__IPYTHON__", None)
    source_registry.hide_only_our_frames()
    if not _write(program):
        source_registry.remember(program.filename, program.source.decode("utf-8", "replace"))
        after_import("multiprocessing.spawn", lambda spawn: _lend_main(spawn, program))
    return module


def _write(program: Program) -> bool:
    """Write the program to its file, unless the caller already has a file of that name there."""
    try:
        file = os.open(program.filename, NEW_FILE, 0o644)
    except OSError:
        return False
    try:
        written = os.write(file, program.source)
    except OSError:
        written = -1
    os.close(file)
    if written == len(program.source):
        return True
    os.unlink(program.filename)  # there was no room for all of it
    return False


def execute(
    program: Program,
    module: ModuleType,
    outbox: Outbox,
    display: Display,
    before: Callable[[], None],
) -> Ending:
    """Run the code and, if asked to, its `main`; report the outcome.

    All that can be done without running a line of it is done ahead of `before`, which may take its
    time.
    """
    namespace = module.__dict__
    # The builtin, not a module variable: a program's own `display` must win.
    vars(builtins)["display"] = lambda *things: _show_all(display, things)
    try:
        try:
            body, tail = _compiled(program)
        except RecursionError:
            from cellwall.guest.context import deep_sources

            body, tail = deep_sources.compiled(lambda: _compiled(program), lambda: _whole(program))
        finally:
            before()  # an error of compilation is reported afterwards, too
        exec(body, namespace)  # noqa: S102  running the caller's code is what this is for
        shown = None if tail is None else eval(tail, namespace)  # noqa: S307  likewise
        if shown is not None:
            bundle, metadata = bundle_of(shown)
            display.publish(bundle, metadata, "result")
        _report_value(program, namespace, outbox)
    except SystemExit as stop:
        return _after_system_exit(stop, namespace, outbox)
    except BaseException as error:  # noqa: BLE001  everything a program raises is its result
        return _after_exception(error, outbox)
    return Ending(False, 0)


def _compiled(program: Program) -> tuple[CodeType, CodeType | None]:
    """Compile the program; a last expression whose value is to be shown is compiled apart."""
    # dont_inherit: the __future__ imports of this module are not the caller's.
    if not program.is_displayed:
        return _whole(program), None
    tree: Any = compile(program.source, program.filename, "exec", _ast.PyCF_ONLY_AST, True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    body: CodeType = compile(tree, program.filename, "exec", 0, True)
    if not isinstance(last, _ast.Expr):
        return body, None
    flags = body.co_flags & FUTURE_FLAGS
    return body, compile(_ast.Expression(last.value), program.filename, "eval", flags, True)


def _whole(program: Program) -> CodeType:
    code: CodeType = compile(program.source, program.filename, "exec", 0, True)
    return code


def _report_value(program: Program, namespace: dict[str, Any], outbox: Outbox) -> None:
    # A call comes first: an example below the function may have left a `result`.
    if program.arguments is not None and callable(namespace.get("main")):
        value = namespace["main"](**program.arguments)
        if hasattr(type(value), "__await__"):
            value = _wait_for(value)
        _post_value(value, outbox)
    elif "result" in namespace:
        _post_value(namespace["result"], outbox)


def _post_value(value: object, outbox: Outbox) -> None:
    from cellwall.guest.display.json_value import encode_value

    outbox.post(*encode_value(value))


def _wait_for(awaitable: Any) -> object:  # noqa: ANN401  whatever an async main returned
    import asyncio

    async def wait() -> object:
        return await awaitable

    return asyncio.run(wait())


def _show_all(display: Display, things: tuple[object, ...]) -> None:
    for thing in things:
        display.show(thing)


def _after_system_exit(stop: SystemExit, namespace: dict[str, Any], outbox: Outbox) -> Ending:
    code = exit_code_of(stop)
    if "result" in namespace:
        _post_value(namespace["result"], outbox)
    return Ending(False, code)


def _after_exception(error: BaseException, outbox: Outbox) -> Ending:
    from cellwall.guest.display import tracebacks

    text = tracebacks.report_uncaught(error)
    report_error(error, text, outbox)
    return Ending(True, EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)


def report_error(error: BaseException, text: str, outbox: Outbox) -> None:
    """Send the `error` event."""
    from cellwall.guest.display import tracebacks
    from cellwall.guest.display.json_value import encode_fields

    report = tracebacks.report_of(error, text)
    outbox.post({"ev": "error"}, encode_fields(report._asdict()))


def exit_code_of(stop: SystemExit) -> int:
    """Return CPython's exit code for the argument of sys.exit; print a message to stderr."""
    code = stop.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    source_registry.print_to_stderr(f"{code}\n")
    return 1


def _leave(ending: Ending, module: ModuleType, figures: Figures) -> int:
    """Do what CPython does between the last line and the exit; return the exit code."""
    _guarded(figures.flush)
    threading = sys.modules.get("threading")
    shutdown = getattr(threading, "_shutdown", None)  # the caller may have a threading.py
    if threading is not None and shutdown is not None and _has_work(threading):
        _guarded(shutdown)
    _guarded(atexit._run_exitfuncs)
    # Before the collector, which closes a file that is in a cycle without writing its buffer.
    _flush_files()
    # Daemon threads would trip over names that are gone; CPython stops them first, which is
    # impossible here.
    if len(sys._current_frames()) == 1:
        _guarded(lambda: _clear(module))
    _flush_files()
    code = ending.exit_code or 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001  the caller may have put anything there
            code = _EXIT_FLUSH_FAILED
    return code


def _has_work(threading: ModuleType) -> bool:
    """Return whether threading's shutdown does more than mark the main thread as stopped.

    That mark alone would touch a dozen pages.
    """
    return len(sys._current_frames()) > 1 or bool(getattr(threading, "_threading_atexits", True))


def _guarded(step: Any) -> None:  # noqa: ANN401  any callable
    try:
        step()
    except SystemExit:
        return
    except BaseException as error:  # noqa: BLE001  caller code runs here too
        from cellwall.guest.display import tracebacks

        source_registry.print_to_stderr(tracebacks.text_of(error))


def _clear(module: ModuleType) -> None:
    # In CPython's order, so that files opened and never closed are written, and __del__ is called.
    namespace = module.__dict__
    names = [name for name in namespace if name != "__builtins__"]
    for is_private in (True, False):
        for name in names:
            if (name.startswith("_") and not name.startswith("__")) is is_private:
                namespace[name] = None
    # Objects that a fork-server left are frozen. Until an object of this process reached the oldest
    # generation, the other generations hold everything; a full collection also empties every free
    # list, a page each.
    gc.collect(2 if gc.get_count()[2] else 1)


def _flush_files() -> None:
    # Files that the caller's modules, or cycles, still hold: os._exit would lose their buffers.
    for thing in gc.get_objects():
        if type(thing) in _WRITERS:
            try:
                if not thing.closed and thing.writable():
                    thing.flush()
            except Exception:  # noqa: BLE001, S112  a broken pipe of one file is not the next's
                continue


def _lend_main(spawn: ModuleType, program: Program) -> None:
    """Let multiprocessing's spawn find the program, which is on no disk, when it asks for it."""
    prepare = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        # Even if a file of that name exists: it is not the running program.
        if "init_main_from_path" in data:
            data["init_main_from_path"] = _written_out(program)
        return data

    spawn.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]


_written: list[str] = []


def _written_out(program: Program) -> str:
    if not _written:
        import tempfile

        folder = tempfile.mkdtemp(prefix="main-")
        path = os.path.join(folder, os.path.basename(program.filename))
        with open(path, "wb") as file:
            file.write(program.source)
        _written.append(path)
    return _written[0]


def _future_flags() -> int:
    import __future__

    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    return flags


FUTURE_FLAGS = _future_flags()
