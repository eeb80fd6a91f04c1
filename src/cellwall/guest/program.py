"""One program in a context of its own: run it as `python file.py` would, report, and leave.

Called by `context.py`, once in the life of a process. It is not a notebook cell (`cell.py`) and it
knows nothing of IPython.

Nothing is imported between the first byte of the program and its exit, because that time is paid
by every execution; and whatever fails on the way out, the exit code is still the program's.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import gc
import io
import os
import sys

from cellwall.guest import sources
from cellwall.guest.afterimport import after_import
from cellwall.guest.display import bundle_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

    from cellwall.guest.display import Display
    from cellwall.guest.figures import Figures
    from cellwall.guest.outbox import Outbox

_EXIT_FLUSH_FAILED = 120
"""What CPython exits with when stdout cannot be flushed at the end."""

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

EXIT_INTERRUPTED = 130
"""128 + SIGINT: how a shell tells of a program that ended by an interrupt."""


class Ending:
    """How caller code ended."""

    __slots__ = ("exit_code", "is_raised")

    def __init__(self, is_raised: bool, exit_code: int | None) -> None:
        """`exit_code` is None for a cell that did not ask for one."""
        self.is_raised = is_raised
        self.exit_code = exit_code


class Program:
    """What came with the request."""

    def __init__(self, header: dict[str, Any], source: bytes) -> None:
        """Take the fields of `execute` that concern a program."""
        self.source = source
        self.filename = str(header.get("filename") or "main.py")
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
        if ending.is_raised or display.cut_bytes:  # else the exit says it all
            end = {"ev": "end", "raised": ending.is_raised, "exit_code": code}
            outbox.post({**end, "display_cut": display.cut_bytes})
        if outbox.is_ours:
            after()
    finally:
        # Even an interrupt or a lack of memory in our own lines must not start a traceback here.
        os._exit(1 if ending.exit_code is None else ending.exit_code)


def prepare_main(program: Program) -> ModuleType:
    """A fresh `__main__` with everything a script finds when it starts."""
    module = type(sys)("__main__")
    module.__file__ = program.filename
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    namespace["__cached__"] = None
    if program.arguments is not None:
        namespace["arguments"] = program.arguments
    sys.modules["__main__"] = module
    sys.argv[:] = program.argv
    sys.path.insert(0, _folder_of(program.filename))
    sys.excepthook = sys.__excepthook__
    sys.displayhook = sys.__displayhook__
    vars(builtins).pop("__IPYTHON__", None)
    sources.hide_only_our_frames()
    sources.remember(program.filename, program.source.decode("utf-8", "replace"))
    after_import("multiprocessing.spawn", lambda spawn: _lend_main(spawn, program))
    return module


def _folder_of(filename: str) -> str:
    # The usual name has none; what finds that out of any lies on a dozen pages.
    if "/" not in filename:
        return os.getcwd()
    return os.path.dirname(os.path.abspath(filename))


def execute(
    program: Program,
    module: ModuleType,
    outbox: Outbox,
    display: Display,
    before: Callable[[], None],
) -> Ending:
    """Run the code and, if asked to, its `main`; report what came of it.

    All that needs no line of it to run is done ahead of `before`, which may take its time.
    """
    namespace = module.__dict__
    # The builtin, not a module variable: a program's own `display` must win.
    vars(builtins)["display"] = lambda *things: _show_all(display, things)
    try:
        try:
            body, tail = _compiled(program)
        finally:
            before()  # what cannot be compiled is told afterwards, too
        exec(body, namespace)  # noqa: S102  running the caller's code is what this is for
        shown = None if tail is None else eval(tail, namespace)  # noqa: S307  likewise
        if shown is not None:
            bundle, metadata = bundle_of(shown)
            display.publish(bundle, metadata, "result")
        _report_value(program, namespace, outbox)
    except SystemExit as stop:
        return _after_system_exit(stop, program, namespace, outbox)
    except BaseException as error:  # noqa: BLE001  everything a program raises is its result
        return _after_exception(error, outbox)
    return Ending(False, 0)


def _compiled(program: Program) -> tuple[CodeType, CodeType | None]:
    """Its code, and apart from it a last expression whose value is to be shown."""
    # dont_inherit: our own __future__ imports are not the caller's.
    if not program.is_displayed:
        return compile(program.source, program.filename, "exec", 0, True), None
    tree: Any = compile(program.source, program.filename, "exec", _ast.PyCF_ONLY_AST, True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    body: CodeType = compile(tree, program.filename, "exec", 0, True)
    if not isinstance(last, _ast.Expr):
        return body, None
    flags = body.co_flags & FUTURE_FLAGS
    return body, compile(_ast.Expression(last.value), program.filename, "eval", flags, True)


def _report_value(program: Program, namespace: dict[str, Any], outbox: Outbox) -> None:
    if "result" in namespace:
        value = namespace["result"]
    elif program.arguments is not None and callable(namespace.get("main")):
        value = namespace["main"](**program.arguments)
        if hasattr(type(value), "__await__"):
            value = _wait_for(value)
    else:
        return
    from cellwall.guest.value import encode_value

    outbox.post(*encode_value(value))


def _wait_for(awaitable: Any) -> object:  # noqa: ANN401  whatever an async main returned
    import asyncio

    async def wait() -> object:
        return await awaitable

    return asyncio.run(wait())


def _show_all(display: Display, things: tuple[object, ...]) -> None:
    for thing in things:
        display.show(thing)


def _after_system_exit(
    stop: SystemExit, program: Program, namespace: dict[str, Any], outbox: Outbox
) -> Ending:
    code = exit_code_of(stop)
    if "result" in namespace:
        _report_value(program, namespace, outbox)
    return Ending(False, code)


def _after_exception(error: BaseException, outbox: Outbox) -> Ending:
    from cellwall.guest import tracebacks

    text = tracebacks.report_uncaught(error)
    report_error(error, text, outbox)
    return Ending(True, EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)


def report_error(error: BaseException, text: str, outbox: Outbox) -> None:
    """Send the `error` event."""
    from cellwall.guest import tracebacks
    from cellwall.guest.value import encode_fields

    report = tracebacks.report_of(error, text)
    outbox.post({"ev": "error"}, encode_fields(report._asdict()))


def exit_code_of(stop: SystemExit) -> int:
    """CPython's reading of sys.exit's argument, message on stderr included."""
    code = stop.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sources.print_to_stderr(f"{code}\n")
    return 1


def _leave(ending: Ending, module: ModuleType, figures: Figures) -> int:
    """What CPython does between the last line and the exit; returns the exit code."""
    _guarded(figures.flush)
    threading = sys.modules.get("threading")
    if threading is not None and _has_work(threading):
        _guarded(threading._shutdown)
    _guarded(atexit._run_exitfuncs)
    # Before the collector, which closes a file that is in a cycle without writing its buffer.
    _flush_files()
    # Daemon threads would trip over names that are gone; CPython stops them first, we cannot.
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
    """Whether its end does more than to call the main thread stopped, which takes a dozen pages."""
    return len(sys._current_frames()) > 1 or bool(getattr(threading, "_threading_atexits", True))


def _guarded(step: Any) -> None:  # noqa: ANN401  any callable
    try:
        step()
    except SystemExit:
        return
    except BaseException as error:  # noqa: BLE001  caller code runs here too
        from cellwall.guest import tracebacks

        sources.print_to_stderr(tracebacks.text_of(error))


def _clear(module: ModuleType) -> None:
    # In CPython's order, so that files opened and never closed are written, and __del__ is called.
    namespace = module.__dict__
    names = [name for name in namespace if name != "__builtins__"]
    for is_private in (True, False):
        for name in names:
            if (name.startswith("_") and not name.startswith("__")) is is_private:
                namespace[name] = None
    # What a fork-server left is frozen. Until something of ours reached the oldest generation, the
    # others are all there is; a full collection also empties every free list, a page each.
    gc.collect(2 if gc.get_count()[2] else 1)


def _flush_files() -> None:
    # What modules of the caller's, or cycles, still hold: os._exit would lose its buffers.
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
        # Even if a file of that name exists: it is not what is running.
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
