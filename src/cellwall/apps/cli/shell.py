"""`cellwall shell`: a session of one language in one sandbox, at a terminal or from a pipe.

Not a terminal inside the sandbox: lines are read here, cells run there. Called by `main`.
Invariant: what was typed never runs in this process; `inputs` only says when it is complete.
"""

from __future__ import annotations

import asyncio
import base64
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cellwall.apps.cli.console.exit_status import explanation
from cellwall.apps.cli.console.inputs import Collector
from cellwall.apps.cli.console.terminal import Streams, complain
from cellwall.apps.cli.one_program import network_and_secrets_of
from cellwall.apps.cli.words import image_words, network_words
from cellwall.model.errors import SandboxUnavailable, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from cellwall.engine.engine import Engine
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.languages.entries.language import Language
    from cellwall.model.execution import Event, Execution

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shell", short_help="Start a session in a sandbox.")(shell)


def shell(  # noqa: PLR0913, PLR0917 - one parameter per option
    language: Annotated[
        str, typer.Option("--language", "-l", help="What is spoken, of those with sessions.")
    ] = "python",
    template: Annotated[
        str | None,
        typer.Option(help="What is installed and preloaded; default: python, data for SQL."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Wall time of each input, in seconds.")] = 3600.0,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    isolation: Annotated[
        str | None, typer.Option(help="Weakest acceptable level: process, namespace, kernel or vm.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Instead of a level: untrusted, semi or trusted.")
    ] = None,
    allow: network_words.Allow = None,
    deny: network_words.Deny = None,
    network: network_words.Network = None,
    package: network_words.Package = None,
    secret: network_words.Secret = None,
    image: image_words.Image = None,
    user: image_words.User = None,
    volume: image_words.Volume = None,
) -> None:
    """Start a session in a sandbox, of Python or another language; Ctrl-C interrupts, Ctrl-D ends.

    Images are saved in the current directory. From a pipe, inputs run without prompts and the
    status is 1 if one of them failed.
    """
    from cellwall.apps.cli.console.built_template import built

    image_words.check("shell", image, user)
    spoken = _spoken(language)
    template = template or spoken.template
    built(template)
    policy, secrets = network_and_secrets_of(allow, deny, network, secret)
    limits = {"memory_mb": memory, "idle_s": 86_400, "life_s": 86_400}
    options = {
        "template": template,
        "limits": {name: value for name, value in limits.items() if value is not None},
        "isolation": isolation,
        "trust": trust,
        "network": policy,
        "secrets": secrets or None,
        "packages": package or (),
        "image": image,
        "user": user,
        "volumes": volume,
    }
    with _background_loop() as loop:
        raise typer.Exit(_Shell(loop, options, timeout, spoken).converse())


def _spoken(name: str) -> Language:
    from cellwall.engine.parts.contexts import speaking
    from cellwall.languages.registry import find

    language = find(name)
    if language.context is None:
        able = ", ".join(speaking())
        raise UsageError(
            f"shell: {language.name} keeps no state between inputs",
            remedy=f"take one that does ({able}), or `cellwall run`",
        )
    return language


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
        self,
        loop: asyncio.AbstractEventLoop,
        options: dict[str, Any],
        timeout: float,
        language: Language,
    ) -> None:
        self._loop = loop
        self._options = options
        self._timeout = timeout
        self._streams = Streams()
        self._language = language.name
        self._context = "main" if language.name == "python" else language.name
        self._collector = Collector(language.name)
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

    def _root(self) -> str:
        image = self._options["image"]
        return f"template {self._options['template']}" if image is None else f"image {image}"

    def _greet(self) -> None:
        if self._is_terminal:
            import readline  # noqa: F401 - gives `input` line editing and history

            isolation = self._sandbox.isolation
            complain(
                f"{self._language}, {self._root()}, "
                f"runtime {isolation.runtime} (level {isolation.level.label}); "
                "Ctrl-C interrupts, Ctrl-D ends"
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
                self._sandbox.run(
                    source, language=self._language, timeout=self._timeout, on_event=self._show
                )
            )
        except SandboxUnavailable as error:
            self._has_failed = True
            self._start_again(error.message)
            return
        except UsageError as error:  # such as NUL; the session has not seen it
            self._has_failed = True
            complain(str(error))
            return
        self._streams.drain()
        self._streams.check()
        self._has_failed = self._has_failed or not execution.ok
        reason = explanation(execution.outcome)
        if reason is not None:
            complain(reason)
        if not self._sandbox_lives():
            self._start_again(_ended(execution))

    def _sandbox_lives(self) -> bool:
        return self._sandbox.status != "stopped"

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
            self._streams.say("stderr", f"cellwall: {self._saved(str(event.data['image/png']))}\n")
        elif "text/plain" in event.data:
            self._streams.say("stdout", f"{event.data['text/plain']}\n")

    def _saved(self, encoded: str) -> str:
        """Save an image, which a program made, and return what is to be said about it."""
        try:
            image = base64.b64decode(encoded)
        except ValueError:
            return "image not saved: it is not base64"
        while True:
            self._images += 1
            path = Path(f"cellwall-{self._images}.png")
            try:
                with path.open("xb") as out:
                    out.write(image)
            except FileExistsError:
                continue
            except OSError as error:
                return f"image not saved as {path}: {error.strerror}"
            return f"image saved as {path}"

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
        asyncio.run_coroutine_threadsafe(self._sandbox.interrupt(self._context), self._loop)


async def _make_engine() -> Engine:
    from cellwall.apps.engines import make_engine

    return make_engine()


def _ended(execution: Execution) -> str:
    return execution.verdict.value
