"""`cellwall sandbox shell`: our terminal becomes one inside a sandbox on a server.

Called by `sandbox`. Not `cellwall shell`, whose lines are read here. Invariant: our terminal is
as it was when we leave. SECURITY: as with ssh, what the inside prints is obeyed by our terminal.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cellwall.apps.cli.console.exit_status import INTERRUPTED, exit_status, explanation
from cellwall.apps.cli.console.remote import Key, Url, Which, connected, found
from cellwall.apps.cli.console.terminal import complain
from cellwall.model.errors import Conflict, UsageError

if TYPE_CHECKING:
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.client.terminals import Terminal
    from cellwall.model.outcome import Outcome

_STEP_BYTES = 64 * 1024


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shell", short_help="Open a terminal in a sandbox.")(shell)


def shell(
    which: Which,
    argv: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND...]", help="Instead of a login shell."),
    ] = None,
    attach: Annotated[
        str | None,
        typer.Option(help="A terminal that runs, by its command's id, instead of a new one."),
    ] = None,
    detach: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Wait so long for --attach, instead of a hang-up at once."
        ),
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Open a terminal in a sandbox; it ends with its program, and closing ours hangs it up.

    \b
    cellwall sandbox shell build
    cellwall sandbox shell build -- python3
    cellwall sandbox shell build --detach 600
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "shell: standard input and output are not a terminal",
            remedy="use `cellwall sandbox exec -i` in a pipe",
        )
    if attach is not None and (argv or detach is not None):
        raise UsageError("shell: --attach starts nothing", remedy="leave out COMMAND and --detach")
    with connected(url, key) as client:
        sandbox_id = found(client, which).id

    def begin(sandbox: AsyncSandbox) -> Coroutine[object, object, Terminal]:
        if attach is not None:
            return sandbox.commands.attach(attach, _size())
        return sandbox.commands.start(argv or ["bash", "-l"], pty=_size(), detach_s=detach)

    outcome = asyncio.run(_talk(url, key, sandbox_id, begin, names_it=detach is not None))
    if outcome is None:
        raise typer.Exit(INTERRUPTED)
    reason = explanation(outcome)
    if reason is not None:
        complain(reason)
    raise typer.Exit(exit_status(outcome))


async def _talk(
    url: str | None,
    key: str | None,
    sandbox_id: str,
    begin: Callable[[AsyncSandbox], Coroutine[object, object, Terminal]],
    *,
    names_it: bool,
) -> Outcome | None:
    """Return how the terminal's program ended; None if it goes on without us."""
    from cellwall.client import aconnect

    async with await aconnect(url, key) as client:
        sandbox = await client.attach(sandbox_id)
        terminal = await begin(sandbox)
        terminal.attaches_again = True
        if names_it:
            complain(f"terminal {terminal.id}")
        with _raw():
            await _carry(terminal)
        if terminal.is_replaced:
            raise Conflict(
                "shell: another client has attached to this terminal",
                remedy=f"take it back with --attach {terminal.id}",
            )
        return None if terminal.is_detached else (await terminal.wait()).outcome


async def _carry(terminal: Terminal) -> None:
    """Pass bytes and sizes both ways until the program ends."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes | tuple[int, int]] = asyncio.Queue()
    loop.add_reader(0, lambda: typed.put_nowait(os.read(0, _STEP_BYTES)))
    loop.add_signal_handler(signal.SIGWINCH, lambda: typed.put_nowait(_size()))
    speaking = asyncio.ensure_future(_speak(terminal, typed))
    try:
        async for data in terminal:
            while data:
                data = data[os.write(1, data) :]  # noqa: PLW2901 - what is left of it
    finally:
        loop.remove_reader(0)
        loop.remove_signal_handler(signal.SIGWINCH)
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)


async def _speak(terminal: Terminal, typed: asyncio.Queue[bytes | tuple[int, int]]) -> None:
    while True:
        said = await typed.get()
        if isinstance(said, tuple):
            await terminal.resize(*said)
        elif said:
            await terminal.write(said)
        else:  # our terminal is gone
            await terminal.detach()  # the server hangs up, at once or after --detach
            return


def _size() -> tuple[int, int]:
    try:  # the terminal itself: COLUMNS and LINES of the environment may be of another one
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, rows = shutil.get_terminal_size()
    return max(1, min(rows, 1000)), max(1, min(columns, 1000))


@contextmanager
def _raw() -> Iterator[None]:
    """Let every key through to the inside; it decides what Ctrl-C means."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
