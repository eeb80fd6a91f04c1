"""The subcommands of `cellwall`, each put together from its own module.

Not the place for what a command does. Called by `main`. Invariant: importing a command's module is
cheap (engine and rich are imported inside functions), and a command that is named first
among the words is the only one that is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = (
    "run",
    "serve",
    "node",
    "gateway",
    "mcp",
    "top",
    "shell",
    "languages",
    "runtimes",
    "doctor",
    "sweep",
    "backup",
    "demo",
)
"""Commands whose module has their name and a function `register`, in the order of the help."""
_ELSEWHERE = {"node": "cluster.node", "gateway": "cluster.gateway"}
"""The modules of commands that are not named like them."""
_GROUPS = {
    "sandbox": "sandboxes.group",
    "network": "sandboxes.network",
    "templates": "templates",
    "images": "images",
    "volumes": "volumes",
    "audit": "audit",
    "settings": "settings",
    "keys": "keys",
    "secrets": "secrets",
    "cluster": "cluster.group",
    "jail": "jail_explain",
}
"""Groups of commands: the module of each, which has an `app`."""


def app_of(words: Sequence[str]) -> typer.Typer:
    """Return the application with the command that `words` begin with, or with all of them."""
    wanted = words[0] if words else ""
    is_known = wanted in _COMMANDS or wanted in _GROUPS
    made = typer.Typer(
        name="cellwall",
        help="Run unreviewed code in sandboxes on this machine.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain help: no rich import, the same text in docs and terminals
        pretty_exceptions_enable=False,
    )
    made.callback()(options)
    for name in _COMMANDS:
        if not is_known or name == wanted:
            _module(_ELSEWHERE.get(name, name)).register(made)
    for name, module in _GROUPS.items():
        if not is_known or name == wanted:
            made.add_typer(_module(module).app, name=name)
    return made


def _module(name: str) -> Any:  # noqa: ANN401 - a module has the type of no protocol
    return import_module(f"cellwall.apps.cli.{name}")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellwall {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run unreviewed code in sandboxes on this machine."""
