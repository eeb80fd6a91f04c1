"""The `cellwall` command: has a subcommand run and turns our errors into statuses.

Not the place for what a command does, nor for how its words are declared (`commands`). Called by
the console script. Invariant: nothing is imported here that a single run of a program does not
need, because every start of `cellwall run` pays for it; `cellwall mcp` is nearly as short.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from cellwall.apps.cli import run_words
from cellwall.apps.cli.console import own_streams
from cellwall.apps.cli.console.exit_status import INTERRUPTED, OUR_FAILURE
from cellwall.apps.cli.console.terminal import complain
from cellwall.model.errors import CellwallError


def main() -> None:
    """Run the command line and leave with its status."""
    own_streams.take_over()
    try:
        _run()
    finally:
        own_streams.leave()


def _command(words: list[str]) -> None:
    """Run the command; usual words of `run` and `mcp` take a shorter way to the same function."""
    if words[:1] == ["run"] and (given := run_words.read(words[1:])) is not None:
        from cellwall.apps.cli.one_program import run_program

        sys.exit(run_program(given))
    if words[:1] == ["mcp"]:
        from cellwall.apps.cli.mcp_on_stdio import budget_in, serve

        if (budget := budget_in(words[1:])) is not None:
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
    except CellwallError as error:
        complain(str(error))
        sys.exit(OUR_FAILURE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(128 + 13)  # our reader went away
    except Exception as error:  # noqa: BLE001 - a bug must not look like a program's own status
        with suppress(OSError):
            import traceback

            traceback.print_exc()
        complain(
            f"a bug of cellwall, not of the program ({type(error).__name__}); "
            "please report it with the lines above"
        )
        sys.exit(OUR_FAILURE)


if __name__ == "__main__":
    main()
