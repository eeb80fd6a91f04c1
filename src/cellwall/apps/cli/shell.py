"""`cellwall shell`: a Python session in one sandbox, at a terminal or from a pipe.

Not a terminal inside the sandbox: lines are read here, cells run there. Called by `main`.
Invariant: this process compiles what was typed only to see whether it is complete; it never runs
it.
"""

from __future__ import annotations

import asyncio
import base64
import codeop
import signal
import sys
import threading
import warnings
from collections.abc import Coroutine, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cellwall.apps.cli.exit_status import explanation
from cellwall.apps.cli.terminal import Streams, complain
from cellwall.model.errors import SandboxUnavailable

if TYPE_CHECKING:
    from types import FrameType

    from cellwall.engine.engine import Engine
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.model.execution import Event, Execution

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shell", short_help="Start a Python session in a sandbox.")(shell)


def shell(
    template: Annotated[str, typer.Option(help="What is installed and preloaded.")] = "python",
    timeout: Annotated[float, typer.Option(help="Wall time of each input, in seconds.")] = 3600.0,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    isolation: Annotated[
        str | None, typer.Option(help="Weakest acceptable level: process, namespace, kernel or vm.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Instead of a level: untrusted, semi or trusted.")
    ] = None,
) -> None:
    """Start a Python session in a sandbox; Ctrl-C interrupts, Ctrl-D ends.

    Images are saved in the current directory. From a pipe, inputs run without prompts and the
    status is 1 if one of them failed.
    """
    from cellwall.apps.cli.templates import built

    built(template)
    limits = {"memory_mb": memory, "idle_s": 86_400, "life_s": 86_400}
    options = {
        "template": template,
        "limits": {name: value for name, value in limits.items() if value is not None},
        "isolation": isolation,
        "trust": trust,
    }
    with _background_loop() as loop:
        raise typer.Exit(_Shell(loop, options, timeout).converse())


class Collector:
    """Gathers lines until they are one complete input."""

    def __init__(self) -> None:
        """Start with nothing gathered."""
        self._lines: list[str] = []

    @property
    def is_empty(self) -> bool:
        """Report whether a new input begins."""
        return not self._lines

    def feed(self, line: str) -> str | None:
        """Add a line; return the whole input once it is complete."""
        self._lines.append(line)
        source = "\n".join(self._lines)
        if self._is_complete(source):
            self._lines.clear()
            return source if source.strip() else None
        return None

    def rest(self) -> str | None:
        """Return what is left when no more lines will come."""
        source = "\n".join(self._lines)
        self._lines.clear()
        return source if source.strip() else None

    def clear(self) -> None:
        """Forget what was gathered."""
        self._lines.clear()

    def _is_complete(self, source: str) -> bool:
        if len(self._lines) == 1 and source.lstrip().startswith(("%", "!", "?")):
            return True  # a magic, if the template has IPython
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                return codeop.compile_command(source, "<shell>", "single") is not None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            # Several statements at once are not "single"; what is wrong is reported from inside.
            return True


@contextmanager
def _background_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop beside `input`, which blocks; the channel has to be read meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cellwall-shell", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Shell:
    """One conversation."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: dict[str, Any], timeout: float
    ) -> None:
        """Nothing is started yet."""
        self._loop = loop
        self._options = options
        self._timeout = timeout
        self._streams = Streams()
        self._collector = Collector()
        self._is_terminal = sys.stdin.isatty()
        self._has_failed = False
        self._is_prompting = False
        self._images = 0
        self._engine: Engine
        self._sandbox: AsyncSandbox

    def converse(self) -> int:
        """Read and run until the input ends; return our status."""
        self._engine = self._wait(_make_engine())
        try:
            self._open()
            self._greet()
            signal.signal(signal.SIGINT, self._on_interrupt)
            for source in self._inputs():
                self._run(source)
        finally:
            self._wait(self._engine.aclose())
        return 1 if self._has_failed and not self._is_terminal else 0

    def _open(self) -> None:
        self._sandbox = self._wait(self._engine.create_sandbox(**self._options))

    def _greet(self) -> None:
        if self._is_terminal:
            import readline  # noqa: F401 - gives `input` line editing and history

            isolation = self._sandbox.isolation
            complain(
                f"template {self._options['template']}, runtime {isolation.runtime} "
                f"(level {isolation.level.label}); Ctrl-C interrupts, Ctrl-D ends"
            )

    def _inputs(self) -> Iterator[str]:
        while True:
            try:
                self._is_prompting = True
                line = input(self._prompt())
                self._is_prompting = False
            except EOFError:
                break
            except KeyboardInterrupt:
                self._collector.clear()
                self._streams.say("stdout", "\n")
                self._streams.drain()
                continue
            source = self._collector.feed(line)
            if source is not None:
                yield source
        source = self._collector.rest()
        if source is not None:
            yield source
        if self._is_terminal:
            self._streams.say("stdout", "\n")
            self._streams.drain()

    def _prompt(self) -> str:
        if not self._is_terminal:
            return ""
        return ">>> " if self._collector.is_empty else "... "

    def _run(self, source: str) -> None:
        try:
            execution = self._wait(
                self._sandbox.run(source, timeout=self._timeout, on_event=self._show)
            )
        except SandboxUnavailable as error:
            self._has_failed = True
            self._start_again(error.message)
            return
        self._streams.drain()
        self._has_failed = self._has_failed or not execution.ok
        reason = explanation(execution.outcome)
        if reason is not None:
            complain(reason)
        if not self._sandbox_lives():
            self._start_again(_ended(execution))

    def _sandbox_lives(self) -> bool:
        return self._sandbox.status == "running"

    def _start_again(self, why: str) -> None:
        complain(
            f"the sandbox has ended ({why}); its variables and files are gone, here is a new one"
        )
        self._open()

    def _show(self, event: Event) -> None:
        self._streams.feed(event)
        if event.data is None:
            return
        if "image/png" in event.data:
            self._save_image(str(event.data["image/png"]))
        elif "text/plain" in event.data:
            self._streams.say("stdout", f"{event.data['text/plain']}\n")

    def _save_image(self, encoded: str) -> None:
        while True:
            self._images += 1
            path = Path(f"cellwall-{self._images}.png")
            try:
                with path.open("xb") as out:
                    out.write(base64.b64decode(encoded))
            except FileExistsError:
                continue
            self._streams.say("stderr", f"cellwall: image saved as {path}\n")
            return

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        # A bare `result()` waits in one system call; short waits let a signal's handler run.
        while not future.done():
            with suppress(FutureTimeout):
                future.result(timeout=0.5)
        return future.result()

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_prompting:
            raise KeyboardInterrupt
        asyncio.run_coroutine_threadsafe(self._sandbox.interrupt(), self._loop)


async def _make_engine() -> Engine:
    from cellwall.apps.engines import make_engine

    return make_engine()


def _ended(execution: Execution) -> str:
    return execution.verdict.value
