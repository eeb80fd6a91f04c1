"""Warming a fork-server: import, build, draw and run once, so that no fork pays for it again.

There are two stages: `warm` for programs, then `warm_sessions` adds what only notebook cells use
(IPython is two thirds of the `python` image, and a fork pays for its size). Both are called in the
fork-server, each before the forks that need it; the caller freezes the heap. This module does not
decide what to preload, and it collects no random generators (`reseed.py`).

It must end with exactly one thread: a fork copies only the thread that forks, and a lock held by
another thread stays locked for ever in every sandbox.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import io
import linecache
import os
import sys
import time
from typing import TYPE_CHECKING

from cellwall.guest.channel.outbox import Outbox

# Modules that json, pickle and others load on first use would be loaded again by every fork.
from cellwall.guest.context import (  # noqa: F401 - loaded, not used
    deep_sources,
    own_modules,
    program,
    sql,
    tools,
)
from cellwall.guest.context import ipython as shell
from cellwall.guest.context import main as context
from cellwall.guest.context.cell import Notebook
from cellwall.guest.context.foreign import context as foreign  # noqa: F401 - loaded, not used
from cellwall.guest.display import json_value, mime_bundles, tracebacks  # noqa: F401 - loaded only
from cellwall.guest.display.display import Display
from cellwall.guest.display.figures import Figures
from cellwall.guest.init import main as init
from cellwall.guest.process import libc, reseed  # noqa: F401 - loaded only
from cellwall.guest.warm import single_program, warmup_runs
from cellwall.guest.warm.import_culprits import Culprits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_ONE_THREAD_EACH = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)

_PATIENCE_S = 2.0
"""Seconds that an already ending thread, such as matplotlib's font timer, may take."""

_FOR_COPIES = (
    "cellwall.guest.context.copies",
    "cellwall.guest.files.areas",
    "cellwall.guest.init.copying",
)
"""Modules that are loaded when a session is copied, or made a copy."""
_CELLS = ("1 + 1", "print(2)", "[1, 'two', 3.0]", "{'a': b'1'}", "None", "1 / 0", "(", "import os")
_MAGICS = ("%who", "pwd", "%%time\n1", "!true")
_PROGRAM = b"import sys\nprint(1)\nresult = {'a': 1}\n[1]\n"


class PreloadError(RuntimeError):
    """A template cannot be warmed up; the message names the module and the remedy."""


def warm(
    modules: list[str],
    environment: dict[str, str] | None = None,
    for_imports: dict[str, str] | None = None,
    *,
    is_rehearsed: bool = True,
) -> dict[str, Any]:
    """Make ready for programs, import `modules` and prime what they need; return a report.

    Objects that forks will touch come first, so that they lie together and the rest stays
    unwritten; a huge page that a fork writes to splits into 512 small ones. The process takes on
    the `environment` of the sandboxes; `for_imports` is added to it while modules are imported. A
    rehearsal is for a process from which many sandboxes are forked, not for one of them.
    """
    started = time.perf_counter()
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    sys.argv[:] = [""]  # objects of this process: a fork would release each word
    _restore_site_names()
    context.prepare()
    if is_rehearsed:
        _rehearse()
    init.prepare()
    with _environment(for_imports or {}), _single_threaded_libraries():
        with Culprits() as culprits:
            culprits.note_open("")
            for name in modules:
                _import_one(name, culprits)
                culprits.note_open(name)
        if "matplotlib" in sys.modules:
            _draw_once()
        if "pandas" in sys.modules:
            _format_once()
        _require_one_thread("running a first program")
    _require_nothing_open(culprits)
    if is_rehearsed:
        _rehearse()
    versions = {name: _version_of(name) for name in modules}
    return {"modules": versions, "seconds": round(time.perf_counter() - started, 3)}


def _rehearse() -> None:
    """Do what forks will do, so that CPython's caches already hold it.

    First CPython's cache of attribute lookups is emptied: it holds the names that imports looked up
    last, all over the heap, and each fork would release them one by one.
    """
    sys._clear_type_cache()
    _run_program_here()
    warmup_runs.rehearse_link()
    warmup_runs.rehearse(lambda: init.Init(context.main))
    warmup_runs.rehearse_first(lambda: init.Init(context.main))


def recall() -> None:
    """Repeat what programs do, for CPython's cache of attribute lookups.

    A fork that looks up another name than its fork-server did last writes to the cache, and to the
    name that it displaces. So the cache has to hold the names that programs look up.
    """
    sys._clear_type_cache()
    _run_program_here(rounds=1)


def warm_sessions(*, is_rehearsed: bool = True) -> None:
    """Build IPython's shell where it is installed, and run cells; load what copies need."""
    for name in _FOR_COPIES:
        importlib.import_module(name)
    with _single_threaded_libraries():
        _run_cells()
        _require_one_thread("running a first cell")
    if is_rehearsed:
        _rehearse()


def _single_threaded_libraries() -> contextlib.AbstractContextManager[None]:
    missing = [name for name in _ONE_THREAD_EACH if name not in os.environ]
    return _environment(dict.fromkeys(missing, "1"))


@contextlib.contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_one(name: str, culprits: Culprits) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # packages may raise anything
        remedy = "install it in the template or take it off the preload list"
        cause = f"{type(error).__name__}: {error}"
        raise PreloadError(f"preload {name}: import failed ({cause}); {remedy}") from error
    culprits.look()
    by = culprits.threaded
    remedy = f"take {name} off the preload list"
    if by and by.partition(".")[0] != name.partition(".")[0]:
        remedy += f", or {by.partition('.')[0]} out of the template"
    _require_one_thread(f"importing {name}" + (f" ({by} starts one)" if by else ""), remedy)
    culprits.threaded = ""


def _require_nothing_open(culprits: Culprits) -> None:
    found = culprits.left_open()
    if found is not None:
        target, module = found
        remedy = f"take {module} off the preload list"
        raise PreloadError(f"preload: {target} is open after importing {module}; {remedy}")


def _require_one_thread(
    step: str, remedy: str = "take what starts them off the preload list"
) -> None:
    threading = sys.modules.get("threading")
    if threading is not None:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and isinstance(thread, threading.Timer):
                thread.cancel()
                thread.join(_PATIENCE_S)
    count = _settled_thread_count()
    if count != 1:
        raise PreloadError(f"preload: {count} threads after {step}, expected 1; {remedy}")


def _settled_thread_count() -> int:
    """Return the kernel's count, once threads that Python has joined are really gone."""
    deadline = time.monotonic() + _PATIENCE_S
    count = _thread_count()
    # A thread that Python still lists will not go away by itself.
    while count > 1 and len(sys._current_frames()) == 1 and time.monotonic() < deadline:
        time.sleep(0.001)
        count = _thread_count()
    return count


def _thread_count() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return len(sys._current_frames())


def _restore_site_names() -> None:
    # Under -S these names are missing, and programs call exit().
    if not hasattr(builtins, "exit"):
        importlib.import_module("site").setquit()
        importlib.import_module("site").sethelper()


def _draw_once() -> None:
    """Choose Agg, find the fonts, load the drawing code."""
    importlib.import_module("matplotlib").use("agg", force=True)
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    axes.plot([0, 1], [1, 0], label="x")
    axes.set_title("x")
    axes.legend()
    figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    pyplot.close(figure)
    # A cached font is an open file, and a fork has none of this process's descriptors.
    manager: Any = sys.modules["matplotlib.font_manager"]
    manager._get_font.cache_clear()
    del figure, axes
    gc.collect()


def _format_once() -> None:
    """Show a table once: pandas loads its formatting code with the first one."""
    pandas: Any = sys.modules["pandas"]
    table = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    repr(table)
    table._repr_html_()


class _Nowhere:
    """A link that leads nowhere, for runs whose events are not needed."""

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Drop the frame."""

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _outbox() -> Outbox:
    outbox = Outbox()
    outbox.open(_Nowhere())
    return outbox


def _run_program_here(rounds: int = warmup_runs.ROUNDS) -> None:
    """Run a program in this very process, of which its forks are copies."""
    _run_program(rounds)
    with untouched_interpreter():
        warmup_runs.rehearse_program(single_program.main, rounds)


def _run_program(rounds: int) -> None:
    """Run the exact paths of a program, so that their code is loaded and specialised."""
    outbox = _outbox()
    display = Display(outbox)
    with untouched_interpreter(), warmup_runs.writing_nowhere(), _quiet():
        request = {"filename": warmup_runs.FILENAME, "display": True}
        for header in ({**request, "arguments": {}}, request) * rounds:
            one = program.Program(header, _PROGRAM, is_alone=True)
            program.execute(one, program.prepare_main(one), outbox, display, _nothing)
            display.begin()


def _run_cells() -> None:
    """Run the exact paths of cells, likewise."""
    outbox = _outbox()
    display = Display(outbox)
    with untouched_interpreter(), _quiet():
        ipython = shell.build()
        if ipython is not None:
            # IPython itself loads it with the first await. No loop is made: it would hold sockets.
            importlib.import_module("asyncio")
        notebook = Notebook(outbox, display, Figures(display.publish))
        for source in (*_CELLS, *(_MAGICS if ipython else ())):
            notebook.run(source, True, _nothing)
        if ipython is not None:
            ipython.reset()


def _nothing() -> None:
    return


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    nobody = io.StringIO()
    with contextlib.redirect_stdout(nobody), contextlib.redirect_stderr(nobody):
        yield


@contextlib.contextmanager
def untouched_interpreter() -> Iterator[None]:
    """Restore everything that a run changes in this process."""
    main, argv, path = sys.modules.get("__main__"), sys.argv[:], sys.path[:]
    hook, finders, sources = sys.displayhook, sys.meta_path[:], dict(linecache.cache)
    names = dict(vars(builtins))
    backend = os.environ.get("MPLBACKEND")
    try:
        yield
    finally:
        if main is not None:
            sys.modules["__main__"] = main
        sys.argv[:], sys.path[:], sys.meta_path[:] = argv, path, finders
        sys.displayhook = hook
        for added in set(vars(builtins)) - set(names):
            delattr(builtins, added)
        vars(builtins).update(names)
        linecache.cache.clear()
        linecache.cache.update(sources)
        if backend is None:
            os.environ.pop("MPLBACKEND", None)


def _version_of(name: str) -> str | None:
    module = sys.modules.get(name.partition(".")[0])
    version = getattr(module, "__version__", None)
    return None if version is None else str(version)
