"""`cellwall mcp`: sandboxes as tools of a desktop client, on stdin and stdout.

Not the protocol (`apps.mcp`). Called by `main`. Invariant: stdout carries the protocol alone, so
nothing here prints.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from cellwall.apps.cli.console.own_streams import check_usable
from cellwall.model.errors import HostUnsupported
from cellwall.model.execution import DEFAULT_BUDGET_CHARS


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp", short_help="Serve sandboxes to an MCP client, on stdio.")(mcp)


def mcp(
    budget: Annotated[
        int, typer.Option(metavar="CHARS", help="Most characters of text in one answer.")
    ] = DEFAULT_BUDGET_CHARS,
) -> None:
    """Serve sandboxes to one client that speaks the Model Context Protocol, on stdin and stdout.

    It needs no server; the sandboxes are destroyed when the client goes. See docs/agents/mcp.md.
    """
    if find_spec("mcp") is None:
        raise HostUnsupported(
            "mcp", "mcp: the SDK is not installed", remedy="run: pip install 'cellwall[mcp]'"
        )
    from cellwall.model.for_model import check_budget

    check_budget(budget)
    check_usable(0)
    check_usable(1)
    from cellwall.apps.engines import make_engine
    from cellwall.apps.mcp.transport.stdio import run

    run(lambda: make_engine(pool=1), budget)
