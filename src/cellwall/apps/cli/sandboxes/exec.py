"""`cellwall sandbox exec`: a command in a sandbox on a server, as a filter.

Called by `sandbox`. Invariant: our stdout and stderr carry the command's and nothing else, and
its status becomes ours; what ends us ends it.
"""

from __future__ import annotations

import os
import signal
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.apps.cli.console.exit_status import exit_status, explanation
from cellwall.apps.cli.console.own_streams import check_usable, failure
from cellwall.apps.cli.console.remote import Key, Url, Which, connected, found, pairs
from cellwall.apps.cli.console.terminal import Streams, complain
from cellwall.model.errors import CellwallError

if TYPE_CHECKING:
    from cellwall.client.blocking import RemoteSandbox
    from cellwall.model.execution import CommandResult
    from cellwall.surface.sync.commands import SyncCommand

_STEP_BYTES = 64 * 1024


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("exec", short_help="Run a command in a sandbox.")(execute)


def execute(  # noqa: PLR0913, PLR0917 - one parameter per option
    which: Which,
    argv: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")
    ],
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Our standard input becomes the command's.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running and print its id.")
    ] = False,
    cwd: Annotated[str | None, typer.Option(metavar="PATH", help="Where it runs.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable; repeatable.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="A user of the image; the sandbox's own must be root.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Wall time in seconds.")] = None,
    merge_stderr: Annotated[
        bool, typer.Option("--merge-stderr", help="Its stderr is its stdout, in true order.")
    ] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Run a command in a sandbox; its exit status becomes ours.

    Statuses of ends that are not its own are those of `cellwall run`.

    \b
    cellwall sandbox exec build -- ls -l
    cellwall sandbox exec build -- bash -c 'echo $HOME; exit 3'
    tar c . | cellwall sandbox exec -i build -- tar x
    """
    options: dict[str, Any] = {"cwd": cwd, "env": pairs(env, "--env"), "timeout": timeout}
    options.update(merge_stderr=merge_stderr, user=user)
    with connected(url, key) as client:
        sandbox = found(client, which)
        if detach:
            typer.echo(sandbox.commands.start(argv, **options).id)
            return
        result = _run(sandbox, argv, options, feeds=stdin)
    reason = explanation(result.outcome)
    if reason is not None:
        complain(reason)
    raise typer.Exit(exit_status(result.outcome))


def _run(
    sandbox: RemoteSandbox, argv: list[str], options: dict[str, Any], *, feeds: bool
) -> CommandResult:
    with _streams() as streams:
        if not feeds:
            return sandbox.commands.run(argv, on_event=streams.feed, **options)
        check_usable(0)
        command: SyncCommand = sandbox.commands.start(argv, on_event=streams.feed, **options)
        Thread(target=_feed, args=(command,), daemon=True).start()
        try:
            return command.wait()
        except BaseException:
            with suppress(CellwallError):
                command.kill()
            raise


@contextmanager
def _streams() -> Iterator[Streams]:
    """Give our stdout and stderr; the block ends when their readers have gone.

    The signal is what the kernel sends for that. Our main thread waits for the server, and only a
    signal's handler can end that; SIGINT would not do, as `nohup` and `&` have it ignored.
    """
    streams = Streams(on_broken=partial(interrupt_main, signal.SIGPIPE))
    # One for a connection of ours finds no failure, and is ignored as before.
    before = signal.signal(signal.SIGPIPE, lambda *_: streams.check())
    try:
        try:
            yield streams
        finally:
            streams.close()
    finally:
        signal.signal(signal.SIGPIPE, before)
        streams.check()


def _feed(command: SyncCommand) -> None:
    """Carry our standard input over; on a thread, because reading it cannot be interrupted."""
    with suppress(CellwallError):  # the command has ended, or the connection has
        try:
            while data := os.read(0, _STEP_BYTES):
                command.send_stdin(data)
        except OSError as error:
            complain(str(failure(0, error)))
        command.close_stdin()
