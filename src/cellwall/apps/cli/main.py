"""The `cellwall` command: puts the subcommands together and turns our errors into statuses.

Not the place for what a command does; each has its own module. Called by the console script and
`python -m cellwall`. Invariant: importing a command's module is cheap (engine and rich are
imported inside functions), because every start of `cellwall run` pays for all of them.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from typing import Annotated

import typer

from cellwall import __version__
from cellwall.apps.cli import (
    audit,
    backup,
    demo,
    doctor,
    jail_explain,
    keys,
    languages,
    mcp,
    run,
    runtimes,
    serve,
    settings,
    shell,
    sweep,
    templates,
    top,
)
from cellwall.apps.cli.console import own_streams
from cellwall.apps.cli.console.exit_status import INTERRUPTED, OUR_FAILURE
from cellwall.apps.cli.console.terminal import complain
from cellwall.apps.cli.sandboxes import group as sandbox
from cellwall.model.errors import CellwallError

app = typer.Typer(
    name="cellwall",
    help="Run code nobody has reviewed, in sandboxes on this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: no rich import, the same text in docs and terminals
    pretty_exceptions_enable=False,
)

for module in (
    run,
    serve,
    mcp,
    top,
    shell,
    languages,
    runtimes,
    doctor,
    sweep,
    backup,
    demo,
):
    module.register(app)
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(templates.app, name="templates")
app.add_typer(audit.app, name="audit")
app.add_typer(settings.app, name="settings")
app.add_typer(keys.app, name="keys")
app.add_typer(jail_explain.app, name="jail")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellwall {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run code nobody has reviewed, in sandboxes on this machine."""


def main() -> None:
    """Run the command line and leave with its status."""
    own_streams.take_over()
    try:
        _run()
    finally:
        own_streams.leave()


def _run() -> None:
    try:
        try:
            app()
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
            traceback.print_exc()
        complain(
            f"a bug of cellwall, not of the program ({type(error).__name__}); "
            "please report it with the lines above"
        )
        sys.exit(OUR_FAILURE)


if __name__ == "__main__":
    main()
