"""The `cellwall` command: has a subcommand run and turns our errors into statuses.

Not the place for what a command does, nor for how its words are declared (`commands`). Called by
the console script. Invariant: nothing is imported here that a single run of a program does not
need, because every start of `cellwall run` pays for it; `cellwall mcp` is nearly as short.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress

from cellwall.apps.cli import run_words
from cellwall.apps.cli.console import own_streams
from cellwall.model.errors import CellwallError

_FEW_COLLECTIONS = 100_000
"""Number of new objects after which a single run collects garbage: more than it imports, which is
none, and would be scanned again and again."""


class _Ended(SystemExit):
    """A single run that has ended, and of which nothing is left but this process."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def main() -> None:
    """Run the command line and leave with its status."""
    own_streams.take_over()
    try:
        _run()
    except _Ended as ended:
        # Its engine is closed, and its threads have ended. To take the interpreter apart, module by
        # module, would take as long as to start four.
        # Threading's hooks come first, as ever: at the end of thread pools, and `at_exit` of ours.
        getattr(threading, "_shutdown", _nothing)()
        atexit._run_exitfuncs()
        own_streams.leave()
        os._exit(ended.status)
    finally:
        own_streams.leave()


def _nothing() -> None:
    """Where this Python has no hooks of threads."""


def _command(words: list[str]) -> None:
    """Run the command; usual words of `run` and `mcp` take a shorter way to the same function."""
    if words[:1] == ["run"] and (given := run_words.read(words[1:])) is not None:
        from cellwall.engine import head_start

        gc.set_threshold(_FEW_COLLECTIONS)
        with head_start.begun(given) as begun:  # before the command itself is imported
            from cellwall.apps.cli.one_program import run_program

            raise _Ended(run_program(given, begun))
    if words[:1] == ["mcp"]:
        from cellwall.apps.cli.mcp_on_stdio import budget_in, serve

        if (budget := budget_in(words[1:])) is not None:
            gc.disable()  # until the SDK is there (`stdio`), which is when a client is heard
            serve(budget)
            return
    from cellwall.apps.cli.commands import app_of

    app_of(words)()


def _run() -> None:
    try:
        try:
            _command(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(128 + 13)  # our reader went away
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a bug's status is ours, too
        sys.exit(_failed(error))


def _failed(error: Exception | KeyboardInterrupt) -> int:
    """Say what ended the command, and return its status."""
    from cellwall.apps.cli.console.exit_status import INTERRUPTED, OUR_FAILURE
    from cellwall.apps.cli.console.terminal import complain

    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, CellwallError):
        complain(str(error))
        return OUR_FAILURE
    with suppress(OSError):
        import traceback

        traceback.print_exception(error)
    complain(
        f"a bug of cellwall, not of the program ({type(error).__name__}); "
        "please report it with the lines above"
    )
    return OUR_FAILURE


if __name__ == "__main__":
    main()
