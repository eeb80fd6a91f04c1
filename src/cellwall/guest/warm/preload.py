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
from cellwall.guest.warm import single_program, template_imports, warmup_runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_FOR_PROGRAMS = ("dataclasses", "hashlib")
"""Modules that nothing of ours needs here, that many programs import, and that take long."""
_FOR_COPIES = (
    "cellwall.guest.context.copies",
    "cellwall.guest.files.areas",
    "cellwall.guest.init.copying",
)
"""Modules that are loaded when a session is copied, or made a copy."""
_CELLS = ("1 + 1", "print(2)", "[1, 'two', 3.0]", "{'a': b'1'}", "None", "1 / 0", "(", "import os")
_MAGICS = ("%who", "pwd", "%%time\n1", "!true")
_PROGRAM = b"import sys\nprint(1)\nresult = {'a': 1}\n[1]\n"


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
    template_imports.take_on(environment)
    if is_rehearsed:
        for name in _FOR_PROGRAMS:
            importlib.import_module(name)
    context.prepare()
    if is_rehearsed:
        _rehearse()
    init.prepare()
    template_imports.bring(modules, for_imports or {})
    if is_rehearsed:
        _rehearse()
    return template_imports.report(modules, started)


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
    with template_imports.single_threaded_libraries():
        _run_cells()
        template_imports.close_archives()
        template_imports.require_one_thread("running a first cell")
    if is_rehearsed:
        _rehearse()


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
