"""What a fork-server imports of its template, and the demands on those imports.

Called by `preload` and, in a fork-server that only answers first, by `first`. It does not decide
what to import, and rehearses nothing. It must end with exactly one thread: a fork copies only the
thread that forks, and a lock held by another thread stays locked for ever in every sandbox.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import io
import os
import sys
import time
from typing import TYPE_CHECKING

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


class PreloadError(RuntimeError):
    """A template cannot be warmed up; the message names the module and the remedy."""


def take_on(environment: dict[str, str] | None) -> None:
    """Take on the environment of the sandboxes, if there is one, and the names of `site`."""
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    sys.argv[:] = [""]  # objects of this process: a fork would release each word
    _restore_site_names()


def bring(modules: list[str], for_imports: dict[str, str]) -> None:
    """Import `modules` and prime what they need; `for_imports` are variables of that time.

    Raises PreloadError.
    """
    with _environment(for_imports), single_threaded_libraries():
        with Culprits() as culprits:
            culprits.note_open("")
            for name in modules:
                _import_one(name, culprits)
                culprits.note_open(name)
        if "matplotlib" in sys.modules:
            _draw_once()
        if "pandas" in sys.modules:
            _format_once()
        require_one_thread("running a first program")
    close_archives()
    _require_nothing_open(culprits)


def close_archives() -> None:
    """Close the archives on the path in which versions of packages were looked up, ours among them.

    The standard library and its backport keep each one open.
    """
    for name in ("importlib.metadata", "importlib_metadata"):
        made: Any = getattr(getattr(sys.modules.get(name), "FastPath", None), "__new__", None)
        if hasattr(made, "cache_info") and made.cache_info().currsize:
            made.cache_clear()
            gc.collect()  # each is part of a cycle


def report(modules: list[str], started: float) -> dict[str, Any]:
    """Return what the host is told of the imports since `started`."""
    versions = {name: _version_of(name) for name in modules}
    close_archives()
    return {"modules": versions, "seconds": round(time.perf_counter() - started, 3)}


def single_threaded_libraries() -> contextlib.AbstractContextManager[None]:
    """Have libraries of numbers start no threads meanwhile."""
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
    require_one_thread(f"importing {name}" + (f" ({by} starts one)" if by else ""), remedy)
    culprits.threaded = ""


def _require_nothing_open(culprits: Culprits) -> None:
    found = culprits.left_open()
    if found is not None:
        target, module = found
        remedy = f"take {module} off the preload list"
        raise PreloadError(f"preload: {target} is open after importing {module}; {remedy}")


def require_one_thread(
    step: str, remedy: str = "take what starts them off the preload list"
) -> None:
    """Raise PreloadError unless this process has one thread, or soon will."""
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


def _version_of(name: str) -> str | None:
    module = sys.modules.get(name.partition(".")[0])
    version = getattr(module, "__version__", None)
    return None if version is None else str(version)
